#include "bench/bare_drives.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/bare_threads.h"
#include "bench/usage_clock.h"
#include "offload/job_directory.h"
#include "offload/space_check.h"
#include "offload/uring/uring_engine.h"

namespace terrace {

BareDrives::BareDrives(const Options& options, Log& log)
    : region_bytes_(options.region_bytes), file_bytes_(options.region_bytes * options.regions) {
  std::vector<SpaceNeed> needs;
  for (const std::string& directory : options.directories) {
    open(directory, log);
    needs.push_back({.directory = directory, .need_bytes = file_bytes_, .budget_bytes = {}});
  }
  check_space(needs);
  for (Drive& drive : drives_) reserve(drive, options);
  find_way(options);
}

// Makes a file, which loses its name as soon as it is open. So the system takes the space back,
// whatever ends the process.
void BareDrives::open(const std::string& directory, Log& log) {
  const JobDirectory job(directory, log);
  drives_.push_back({.file = std::make_unique<DirectFile>(job.slot_file()), .memory = nullptr});
}

void BareDrives::reserve(Drive& drive, const Options& options) const {
  const int error_number = drive.file->preallocate(file_bytes_);
  if (error_number != 0) {
    throw IoError({.operation = "fallocate",
                   .path = drive.file->path(),
                   .size = file_bytes_,
                   .error_number = error_number});
  }
  drive.memory = std::make_unique<HostMemory>(
      options.block_bytes_max * static_cast<std::size_t>(options.depth_max), HostMemoryOptions{});
}

void BareDrives::find_way(const Options& options) {
  try {
    try_rings(options, {});
    return;
  } catch (const UringRefused& refused) {
    remark_ =
        fmt::format("memory cannot be registered with io_uring: {} (ulimit -l)", refused.what());
  }
  try {
    way_ = IoWay::kUring;
    try_rings(options, {.registered_buffers = false});
  } catch (const UringRefused& refused) {
    way_ = IoWay::kThreads;
    const bool is_limit = refused.where().error_number == ENOMEM;
    remark_ = fmt::format("io_uring is refused, so threads are used: {} ({})", refused.what(),
                          is_limit ? "ulimit -l"
                                   : "sysctl kernel.io_uring_disabled, the container's seccomp "
                                     "profile");
  }
}

// Makes rings for all drives at the same time, in the largest number and size that a run has.
void BareDrives::try_rings(const Options& options, const RingMode& mode) const {
  std::vector<std::unique_ptr<BareLoop>> loops;
  for (const Drive& drive : drives_) {
    loops.push_back(std::make_unique<BareLoop>(
        *drive.file, range(0), drive.memory->bytes(),
        BareLoop::Options{
            .block_bytes = options.block_bytes_max, .depth = options.depth_max, .mode = mode}));
  }
}

std::size_t BareDrives::fill(const Deadline& end) {
  std::size_t regions = file_bytes_ / region_bytes_;
  for (std::size_t i = 0; i < drives_.size(); ++i) {
    const double share = 1 / static_cast<double>(drives_.size() - i);
    regions = std::min(regions, write_once(drives_[i], end.part(share)));
  }
  return regions;
}

// Writes the file, because reads and writes of holes look several times faster than the drive is.
std::size_t BareDrives::write_once(Drive& drive, const Deadline& end) const {
  constexpr std::size_t kPieceMax = 32 * kMiB;  // a slow drive takes a second
  const std::span<const std::byte> all = drive.memory->bytes();
  const std::span<const std::byte> bytes = all.first(std::min(all.size(), kPieceMax));
  for (std::uint64_t at = 0; at < file_bytes_;) {
    if (end.is_over()) return at / region_bytes_;
    const std::size_t size = std::min<std::uint64_t>(bytes.size(), file_bytes_ - at);
    const std::int64_t written = drive.file->write_at(bytes.first(size), at);
    if (written <= 0) {
      throw IoError({.operation = "write",
                     .path = drive.file->path(),
                     .offset = at,
                     .size = size,
                     .error_number = static_cast<int>(-written)});
    }
    at += static_cast<std::uint64_t>(written);
  }
  return file_bytes_ / region_bytes_;
}

std::vector<int> BareDrives::files() const {
  std::vector<int> files;
  for (const Drive& drive : drives_) files.push_back(drive.file->descriptor());
  return files;
}

// One run on all drives, timed together. The clock starts when every loop has its ring and its
// memory registered, and stops when the last block has ended, because taking a ring apart takes as
// long as carrying many blocks.
class BareDrives::Race {
 public:
  Race(std::size_t runners, const Run& what, const FileRange& range, IoWay way)
      : what_(what),
        range_(range),
        way_(way),
        lines_(static_cast<std::ptrdiff_t>(runners), Line{this}) {}

  void run(Drive& drive) noexcept {
    try {
      const auto [block_bytes, depth] = what_.shape;
      const std::span<std::byte> all = drive.memory->bytes();
      const std::span<std::byte> memory =
          what_.wide ? all : all.first(block_bytes * static_cast<std::size_t>(depth));
      if (way_ == IoWay::kThreads) {
        carry([&] {
          return run_bare_threads(*drive.file, range_, memory,
                                  {what_.shape, what_.mix, what_.seconds});
        });
        return;
      }
      BareLoop loop(*drive.file, range_, memory,
                    {.block_bytes = block_bytes,
                     .depth = depth,
                     .mode = {.registered_buffers = way_ == IoWay::kRegistered}});
      carry([&] { return loop.run(what_.mix, what_.seconds); });
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      lines_.arrive_and_drop();
    }
  }

  // Throws a runner's failure. A ring that was allowed before is refused if something else has used
  // up the limit.
  [[noreturn]] void rethrow() const {
    try {
      std::rethrow_exception(failure_);
    } catch (const UringRefused& refused) {
      throw EnvironmentError(refused.what(), "raise the limit on locked memory (ulimit -l)");
    }
  }

  // Returns the rate. Called after every runner has returned.
  IoRate result() const {
    if (failure_) rethrow();
    const double gigabytes = static_cast<double>(bytes_.load()) * 1e-9;
    return {.gb_per_s = gigabytes / wall_seconds_, .cpu_ms_per_gb = cpu_seconds_ * 1e3 / gigabytes};
  }

 private:
  struct Line {
    void operator()() noexcept { race->all_at_line(); }
    Race* race;
  };

  template <typename Body>
  void carry(Body body) {
    lines_.arrive_and_wait();
    bytes_.fetch_add(body());
    lines_.arrive_and_wait();
  }

  void all_at_line() noexcept {
    if (!usage_) {
      usage_.emplace();
    } else {
      wall_seconds_ = usage_->wall_seconds();
      cpu_seconds_ = usage_->cpu_seconds();
    }
  }

  const Run what_;
  const FileRange range_;
  const IoWay way_;
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_ while runners run
  // Set while all runners are at a line.
  std::optional<UsageClock> usage_;
  double wall_seconds_ = 0;
  double cpu_seconds_ = 0;
  std::barrier<Line> lines_;
};

FileRange BareDrives::range(std::size_t region) const {
  return {.begin = region * region_bytes_, .bytes = region_bytes_};
}

IoRate BareDrives::run(const Run& run) {
  Race race(drives_.size(), run, range(run.region), way_);
  std::vector<std::thread> threads;
  for (Drive& drive : drives_) {
    threads.emplace_back([&] { race.run(drive); });
  }
  for (std::thread& thread : threads) thread.join();
  return race.result();
}

}  // namespace terrace
