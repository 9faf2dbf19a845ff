#include "runtime/bench/bare_drives.h"

#include <algorithm>
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

BareDrives::BareDrives(const std::vector<std::string>& directories, std::uint64_t file_bytes,
                       std::size_t block_bytes_max, int depth_max, Log& log)
    : file_bytes_(file_bytes) {
  std::vector<SpaceNeed> needs;
  for (const std::string& directory : directories) {
    Drive drive;
    drive.job = std::make_unique<JobDirectory>(directory, log);
    drives_.push_back(std::move(drive));
    needs.push_back({.directory = directory, .need_bytes = file_bytes, .budget_bytes = {}});
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

IoRate BareDrives::run(IoMix mix, const IoShape& shape, double seconds) {
  std::uint64_t bytes = 0;
  std::optional<UsageClock> usage;
  std::exception_ptr failure;
  std::mutex mutex;  // guards bytes and failure
  // The clock starts when every loop has its ring and its memory registered.
  std::barrier ready(static_cast<std::ptrdiff_t>(drives_.size()),
                     [&usage]() noexcept { usage.emplace(); });
  std::vector<std::thread> threads;
  for (Drive& drive : drives_) {
    threads.emplace_back([&, mix, seconds] {
      bool arrived = false;
      try {
        const BareLoop::Options options = {
            .block_bytes = shape.block_bytes, .depth = shape.depth, .mode = {}};
        BareLoop loop(*drive.file, file_bytes_, drive.memory->bytes(), options);
        arrived = true;
        ready.arrive_and_wait();
        const std::uint64_t carried = loop.run(mix, seconds);
        const std::lock_guard lock(mutex);
        bytes += carried;
      } catch (...) {
        if (!arrived) ready.arrive_and_drop();
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  return {.gb_per_s = gigabytes / usage->wall_seconds(),
          .cpu_ms_per_gb = usage->cpu_seconds() * 1e3 / gigabytes};
}

}  // namespace terrace
