#include "runtime/bench/bare_drives.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/space_check.h"
#include "runtime/bench/usage_clock.h"

namespace terrace {

BareDrives::BareDrives(const std::vector<std::string>& directories, std::uint64_t region_bytes,
                       std::size_t regions, std::size_t block_bytes_max, int depth_max, Log& log)
    : region_bytes_(region_bytes), file_bytes_(region_bytes * regions) {
  std::vector<SpaceNeed> needs;
  for (const std::string& directory : directories) {
    Drive drive;
    drive.job = std::make_unique<JobDirectory>(directory, log);
    drives_.push_back(std::move(drive));
    needs.push_back({.directory = directory, .need_bytes = file_bytes_, .budget_bytes = {}});
  }
  check_space(needs);
  for (Drive& drive : drives_) {
    drive.file = std::make_unique<DirectFile>(drive.job->slot_file());
    drive.memory = std::make_unique<HostMemory>(
        block_bytes_max * static_cast<std::size_t>(depth_max), HostMemoryOptions{});
    write_once(drive);
  }
}

// Reads and writes of holes look several times faster than the drive is.
void BareDrives::write_once(Drive& drive) const {
  const int error_number = drive.file->preallocate(file_bytes_);
  if (error_number != 0) {
    throw IoError({.operation = "fallocate",
                   .path = drive.file->path(),
                   .size = file_bytes_,
                   .error_number = error_number});
  }
  const std::span<const std::byte> bytes = drive.memory->bytes();
  for (std::uint64_t at = 0; at < file_bytes_;) {
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
}

std::vector<std::string> BareDrives::files() const {
  std::vector<std::string> files;
  for (const Drive& drive : drives_) files.push_back(drive.file->path());
  return files;
}

// The clock runs from when every loop has its ring and its memory registered until the last block
// has ended: taking a ring apart takes as long as carrying many blocks.
class BareDrives::Race {
 public:
  Race(std::size_t runners, const Run& what, const FileRange& range)
      : what_(what), range_(range), lines_(static_cast<std::ptrdiff_t>(runners), Line{this}) {}

  void run(Drive& drive) noexcept {
    try {
      const auto [block_bytes, depth] = what_.shape;
      const std::span<std::byte> memory = drive.memory->bytes();
      const std::size_t in_flight = block_bytes * static_cast<std::size_t>(depth);
      BareLoop loop(*drive.file, range_, what_.wide ? memory : memory.first(in_flight),
                    {.block_bytes = block_bytes, .depth = depth, .mode = {}});
      lines_.arrive_and_wait();
      const std::uint64_t carried = loop.run(what_.mix, what_.seconds);
      bytes_.fetch_add(carried);
      lines_.arrive_and_wait();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      lines_.arrive_and_drop();
    }
  }

  // After every runner has returned.
  IoRate result() const {
    if (failure_) std::rethrow_exception(failure_);
    const double gigabytes = static_cast<double>(bytes_.load()) * 1e-9;
    return {.gb_per_s = gigabytes / wall_seconds_, .cpu_ms_per_gb = cpu_seconds_ * 1e3 / gigabytes};
  }

 private:
  struct Line {
    void operator()() noexcept { race->all_at_line(); }
    Race* race;
  };

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
  std::atomic<std::uint64_t> bytes_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_ while runners run
  // Set where all runners are at a line.
  std::optional<UsageClock> usage_;
  double wall_seconds_ = 0;
  double cpu_seconds_ = 0;
  std::barrier<Line> lines_;
};

FileRange BareDrives::range(std::size_t region) const {
  return {.begin = region * region_bytes_, .bytes = region_bytes_};
}

IoRate BareDrives::run(const Run& run) {
  Race race(drives_.size(), run, range(run.region));
  std::vector<std::thread> threads;
  for (Drive& drive : drives_) {
    threads.emplace_back([&] { race.run(drive); });
  }
  for (std::thread& thread : threads) thread.join();
  return race.result();
}

}  // namespace terrace
