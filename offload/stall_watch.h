#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace {

// A transfer that the system has been asked for, as the watch sees it. Begun and ended by the
// engine's thread; read by the watch.
class TransferInFlight {
 public:
  void begin(std::uint64_t offset, std::size_t size_bytes) noexcept;
  void end() noexcept { since_ns_.store(0, std::memory_order_release); }

 private:
  friend class StallWatch;
  std::atomic<std::int64_t> since_ns_{0};  // 0: none
  std::atomic<std::uint64_t> offset_{0};
  std::atomic<std::size_t> size_bytes_{0};
};

// A thread that reports transfers which do not end, each once.
class StallWatch {
 public:
  struct Stalled {
    std::size_t transfer = 0;  // index among the watched transfers
    std::uint64_t offset = 0;  // in its file
    std::size_t size_bytes = 0;
    double seconds = 0;  // since the system was asked
  };

  // The transfers outlive the watch. `report` is called on the watch's thread. Throws
  // EnvironmentError where the thread does not start.
  StallWatch(std::vector<const TransferInFlight*> transfers, double seconds,
             std::function<void(const Stalled&)> report);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void watch();
  void look(std::int64_t now_ns);

  const std::vector<const TransferInFlight*> transfers_;
  const std::int64_t limit_ns_;
  const std::function<void(const Stalled&)> report_;
  std::vector<std::int64_t> reported_;  // by transfer: start of the last one reported

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace terrace
