#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "memory/host/host_memory.h"
#include "offload/direct_file.h"
#include "offload/job_directory.h"
#include "runtime/bench/io_load.h"

namespace terrace {

// A file on each drive, written once, for whatever measures the drives without the store. It has
// regions of equal size, since what lies where something else has just been looks faster: a drive,
// or the host of a virtual one, keeps a part of it in memory. Removed when destroyed.
class BareDrives {
 public:
  // Throws ConfigError for a directory that cannot be written to, OutOfMemory where the drive is
  // too full.
  BareDrives(const std::vector<std::string>& directories, std::uint64_t region_bytes,
             std::size_t regions, std::size_t block_bytes_max, int depth_max, Log& log);

  struct Run {
    IoMix mix = IoMix::kRead;
    IoShape shape;
    std::size_t region = 0;
    double seconds = 0;
    // The memory is what is in flight, used again and again, or all that there is, in turn.
    bool wide = false;
  };
  // A bare loop on each drive, each on a thread of its own, all at the same time.
  IoRate run(const Run& run);

  std::vector<std::string> files() const;
  FileRange range(std::size_t region) const;  // of each file
  // Of one of them, when it is not running.
  std::span<const std::byte> memory() const { return drives_.front().memory->bytes(); }
  // A directory that is removed with the rest.
  const std::string& scratch() const { return drives_.front().job->path(); }

 private:
  class Race;
  struct Drive {
    std::unique_ptr<JobDirectory> job;
    std::unique_ptr<DirectFile> file;
    std::unique_ptr<HostMemory> memory;
  };

  void write_once(Drive& drive) const;

  const std::uint64_t region_bytes_;
  const std::uint64_t file_bytes_;
  std::vector<Drive> drives_;
};

}  // namespace terrace
