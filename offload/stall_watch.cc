#include "offload/stall_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/address_space.h"
#include "base/clock.h"
#include "base/error.h"

namespace terrace {

void TransferInFlight::begin(std::uint64_t offset, std::size_t size_bytes) noexcept {
  offset_.store(offset, std::memory_order_relaxed);
  size_bytes_.store(size_bytes, std::memory_order_relaxed);
  since_ns_.store(SystemClock().now_ns(), std::memory_order_release);
}

StallWatch::StallWatch(std::vector<const TransferInFlight*> transfers, double seconds,
                       std::function<void(const Stalled&)> report)
    : transfers_(std::move(transfers)),
      limit_ns_(static_cast<std::int64_t>(seconds * 1e9)),
      report_(std::move(report)),
      reported_(transfers_.size()) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        fmt::format("cannot start the thread that watches for stalled drives: {}", error.what()),
        remedy_for_threads());
  }
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void StallWatch::watch() {
  const auto pause = std::chrono::nanoseconds(limit_ns_ / 4);
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, pause, [this] { return stop_; })) look(SystemClock().now_ns());
}

void StallWatch::look(std::int64_t now_ns) {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const TransferInFlight& transfer = *transfers_[i];
    const std::int64_t since_ns = transfer.since_ns_.load(std::memory_order_acquire);
    if (since_ns == 0 || now_ns - since_ns < limit_ns_ || reported_[i] == since_ns) continue;
    const Stalled stalled = {.transfer = i,
                             .offset = transfer.offset_.load(std::memory_order_relaxed),
                             .size_bytes = transfer.size_bytes_.load(std::memory_order_relaxed),
                             .seconds = static_cast<double>(now_ns - since_ns) * 1e-9};
    // The transfer has ended meanwhile, and the slot may already hold the next one.
    if (transfer.since_ns_.load(std::memory_order_acquire) != since_ns) continue;
    reported_[i] = since_ns;
    report_(stalled);
  }
}

}  // namespace terrace
