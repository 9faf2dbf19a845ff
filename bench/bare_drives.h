#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/deadline.h"
#include "bench/io_load.h"
#include "memory/host/host_memory.h"
#include "offload/direct_file.h"

namespace terrace {

// A file on each drive, written once, for whatever measures the drives without the store. Each file
// has regions of equal size, because a place that was used a moment ago looks faster: a drive, or
// the host of a virtual one, keeps a part of it in memory.
class BareDrives {
 public:
  struct Options {
    std::vector<std::string> directories;
    std::uint64_t region_bytes = 0;
    std::size_t regions = 1;
    std::size_t block_bytes_max = 0;
    int depth_max = 1;
  };

  // Makes the files, which have no names from then on, and finds out how they can be reached.
  // Throws ConfigError for a directory that cannot be written to, OutOfMemory if the drive is too
  // full.
  BareDrives(const Options& options, Log& log);
  // Writes all files once, or only the regions that there is time for before `end`. Called before
  // the first run(). Returns the number of regions that are written on every drive.
  std::size_t fill(const Deadline& end = {});

  IoWay way() const { return way_; }
  // The reason why way() is not the best way; empty if it is.
  const std::string& remark() const { return remark_; }
  bool direct() const { return drives_.front().file->direct(); }

  struct Run {
    IoMix mix = IoMix::kRead;
    IoShape shape;
    std::size_t region = 0;
    double seconds = 0;
    // Whether the run uses all of the memory in turn, or only as much as is in flight, again and
    // again.
    bool wide = false;
  };
  // Runs a bare loop on each drive, each on a thread of its own, all at the same time.
  IoRate run(const Run& run);

  std::vector<int> files() const;             // descriptors
  FileRange range(std::size_t region) const;  // of each file
  // The memory of one drive, for use while nothing runs.
  std::span<const std::byte> memory() const { return drives_.front().memory->bytes(); }

 private:
  class Race;
  struct Drive {
    std::unique_ptr<DirectFile> file;
    std::unique_ptr<HostMemory> memory;
  };

  void open(const std::string& directory, Log& log);
  void reserve(Drive& drive, const Options& options) const;
  void find_way(const Options& options);
  void try_rings(const Options& options, const RingMode& mode) const;
  // Returns the number of regions that it has written.
  std::size_t write_once(Drive& drive, const Deadline& end) const;

  const std::uint64_t region_bytes_;
  const std::uint64_t file_bytes_;
  std::vector<Drive> drives_;
  IoWay way_ = IoWay::kRegistered;
  std::string remark_;
};

}  // namespace terrace
