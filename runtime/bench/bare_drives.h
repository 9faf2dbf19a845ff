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

// A file on each drive, written once, for whatever measures the drives without the store. Removed
// when destroyed.
class BareDrives {
 public:
  // Throws ConfigError for a directory that cannot be written to, OutOfMemory where the drive is
  // too full.
  BareDrives(const std::vector<std::string>& directories, std::uint64_t file_bytes,
             std::size_t block_bytes_max, int depth_max, Log& log);

  // A bare loop on each drive, each on a thread of its own, all at the same time. The memory is
  // what is in flight, used again and again, or with `wide` all that there is, in turn.
  IoRate run(IoMix mix, const IoShape& shape, double seconds, bool wide = false);

  std::vector<std::string> files() const;
  std::uint64_t file_bytes() const { return file_bytes_; }
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

  const std::uint64_t file_bytes_;
  std::vector<Drive> drives_;
};

}  // namespace terrace
