#include "bench/store_load.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/samples.h"
#include "bench/usage_clock.h"
#include "offload/io_engine.h"

namespace terrace {

namespace {

std::unique_ptr<BlockStore> make_store(const StoreLoad::Options& options, Log& log) {
  NvmeStoreOptions sized = options.store;
  sized.expected_bytes = options.total_bytes;
  return make_nvme_store(sized, log);
}

}  // namespace

StoreLoad::StoreLoad(const Options& options, Log& log)
    : options_(options),
      memory_(options.extent_bytes * static_cast<std::size_t>(options.requests),
              HostMemoryOptions{}),
      store_(make_store(options, log)),
      slots_(slot_count()) {
  const std::size_t count = std::max<std::size_t>(2, options.total_bytes / options.extent_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    extents_.push_back(store_->create_extent(options.extent_bytes));
  }
  store_->prepare();
  store_->register_memory(memory_.bytes());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].load = this;
    slots_[i].memory = memory_.bytes().subspan(i * options.extent_bytes, options.extent_bytes);
  }
  start_all({.mix = IoMix::kWrite}, 0, extents_.size());
}

StoreLoad::~StoreLoad() = default;

// Returns how many requests the store takes without blocking. The store's thread starts requests,
// and would wait for itself if the store were full.
std::size_t StoreLoad::slot_count() const {
  const std::size_t blocks = divide_up(options_.extent_bytes, store_->block_bytes());
  const std::size_t most = std::max<std::size_t>(1, kQueuedPiecesMax / (2 * blocks));
  return std::min(static_cast<std::size_t>(options_.requests), most);
}

// Sets `request` to the next request. Returns false if there is none.
bool StoreLoad::take_next(IoRequest& request) {
  const bool failed = failure_.kind != IoOutcome::Kind::kDone;
  const bool over = started_ >= requests_min_ &&
                    (SystemClock().now_ns() >= until_ns_ || run_.stopped.stop_requested());
  const bool mixed = run_.mix == IoMix::kMixed;
  // A mixed load has as many writes as reads.
  if (failed || (over && (!mixed || started_ % 2 == 0))) return false;
  const bool writes = run_.mix == IoMix::kWrite || (mixed && started_ % 2 == 1);
  const std::size_t half = extents_.size() / 2;
  const std::size_t place =
      mixed ? started_ / 2 % half + (writes ? half : 0) : started_ % extents_.size();
  request.direction = writes ? IoRequest::Direction::kWrite : IoRequest::Direction::kRead;
  request.extent = extents_[place];
  ++started_;
  return true;
}

void StoreLoad::start_all(const Run& run, std::int64_t until_ns, std::size_t requests_min) {
  {
    const std::lock_guard lock(mutex_);
    run_ = run;
    until_ns_ = until_ns;
    requests_min_ = requests_min;
    started_ = 0;
    ended_ = 0;
    latencies_s_.clear();
  }
  const auto asked = static_cast<std::size_t>(run.requests);
  const std::size_t requests = asked == 0 ? slots_.size() : std::min(asked, slots_.size());
  for (Slot& slot : std::span(slots_).first(requests)) {
    IoRequest request{.extent = {}, .memory = slot.memory, .completion = &slot};
    {
      const std::lock_guard lock(mutex_);
      if (!take_next(request)) break;
    }
    slot.start_ns = SystemClock().now_ns();
    store_->submit(request);
  }
  std::unique_lock lock(mutex_);
  all_ended_.wait(lock, [this] { return started_ == ended_; });
  lock.unlock();
  store_->drain();  // the last completion has returned
  failure_.throw_if_failed();
}

void StoreLoad::ended(Slot& slot, const IoOutcome& outcome) noexcept {
  IoRequest request{.extent = {}, .memory = slot.memory, .completion = &slot};
  const std::int64_t now_ns = SystemClock().now_ns();
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    latencies_s_.push_back(static_cast<double>(now_ns - slot.start_ns) * 1e-9);
    const bool first = failure_.kind == IoOutcome::Kind::kDone;
    if (first && outcome.kind != IoOutcome::Kind::kDone) failure_ = outcome;
    more = take_next(request);
    ++ended_;
    if (started_ == ended_) all_ended_.notify_one();
  }
  if (!more) return;
  slot.start_ns = now_ns;
  store_->submit(request);
}

void StoreLoad::add_latencies(IoRate& rate) {
  const std::lock_guard lock(mutex_);
  rate.latency_p50_s = percentile_of(latencies_s_, 50);
  rate.latency_p99_s = percentile_of(latencies_s_, 99);
}

IoRate StoreLoad::run(const Run& run) {
  const UsageClock usage;
  const std::int64_t now_ns = SystemClock().now_ns();
  start_all(run, now_ns + static_cast<std::int64_t>(run.seconds * 1e9), 2);
  const auto bytes = static_cast<double>(options_.extent_bytes * started_);
  IoRate rate = {.gb_per_s = bytes * 1e-9 / usage.wall_seconds(),
                 .cpu_ms_per_gb = usage.cpu_seconds() * 1e3 / (bytes * 1e-9)};
  add_latencies(rate);
  return rate;
}

}  // namespace terrace
