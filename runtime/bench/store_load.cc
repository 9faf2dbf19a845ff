#include "runtime/bench/store_load.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/bench/usage_clock.h"

namespace terrace {

StoreLoad::StoreLoad(const Options& options, Log& log)
    : options_(options),
      memory_(options.extent_bytes * static_cast<std::size_t>(options.requests),
              HostMemoryOptions{}),
      store_(make_nvme_store(options.store, log)),
      slots_(static_cast<std::size_t>(options.requests)) {
  const std::size_t count = std::max<std::size_t>(2, options.total_bytes / options.extent_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    extents_.push_back(store_->create_extent(options.extent_bytes));
  }
  store_->prepare();
  store_->register_memory(memory_.bytes());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].load = this;
    slots_[i].memory = memory_.bytes().subspan(i * options.extent_bytes, options.extent_bytes);
    free_.push_back(&slots_[i]);
  }
  for (std::size_t i = 0; i < extents_.size(); ++i) submit(IoRequest::Direction::kWrite, i);
  finish();
}

StoreLoad::~StoreLoad() = default;

void StoreLoad::ended(Slot& slot, const IoOutcome& outcome) noexcept {
  const std::lock_guard lock(mutex_);
  const bool first = failure_.kind == IoOutcome::Kind::kDone;
  if (first && outcome.kind != IoOutcome::Kind::kDone) failure_ = outcome;
  free_.push_back(&slot);
  slot_freed_.notify_one();
}

// The one that has been free for the longest, so that every part of the memory has its turn.
StoreLoad::Slot& StoreLoad::take_free_slot() {
  std::unique_lock lock(mutex_);
  slot_freed_.wait(lock, [this] { return !free_.empty(); });
  Slot& slot = *free_.front();
  free_.pop_front();
  return slot;
}

void StoreLoad::submit(IoRequest::Direction direction, std::size_t extent) {
  Slot& slot = take_free_slot();
  store_->submit({.direction = direction,
                  .extent = extents_[extent],
                  .offset = 0,
                  .memory = slot.memory,
                  .completion = &slot});
}

void StoreLoad::finish() {
  store_->drain();
  const std::lock_guard lock(mutex_);
  failure_.throw_if_failed();
}

IoRate StoreLoad::run(IoMix mix, double seconds) {
  const bool mixed = mix == IoMix::kMixed;
  const std::size_t half = mixed ? extents_.size() / 2 : extents_.size();
  const SystemClock clock;
  const UsageClock usage;
  const std::int64_t until_ns = clock.now_ns() + static_cast<std::int64_t>(seconds * 1e9);
  double bytes = 0;
  for (std::size_t turn = 0; turn == 0 || clock.now_ns() < until_ns; ++turn) {
    const std::size_t i = turn % half;
    if (mix != IoMix::kWrite) submit(IoRequest::Direction::kRead, i);
    if (mix != IoMix::kRead) submit(IoRequest::Direction::kWrite, mixed ? half + i : i);
    bytes += static_cast<double>(options_.extent_bytes) * (mixed ? 2 : 1);
  }
  finish();
  return {.gb_per_s = bytes * 1e-9 / usage.wall_seconds(),
          .cpu_ms_per_gb = usage.cpu_seconds() * 1e3 / (bytes * 1e-9)};
}

}  // namespace terrace
