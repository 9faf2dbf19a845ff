#include "runtime/engine/home_access.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/bytes.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

constexpr std::size_t kBounceBytes = 4 * kMiB;

// Blocks until one request has ended.
class Waiter final : public IoCompletion {
 public:
  void done(const IoOutcome& outcome) noexcept override {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    ended_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    outcome_.throw_if_failed();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  IoOutcome outcome_;  // guarded by mutex_
  bool ended_ = false;
};

}  // namespace

HomeAccess::HomeAccess(const Program& program, const StepModel& model, const ExecutorMemory& memory,
                       Device& device, BlockStore* store)
    : program_(program),
      model_(model),
      memory_(memory),
      store_(store),
      bounce_(store == nullptr ? kBounceBytes : std::max(kBounceBytes, store->block_bytes()),
              HostMemoryOptions{}),
      stream_(device.create_stream("homes")) {
  for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.life == Life::kPersistent) persistent_.emplace(buffer.key, b);
  }
}

HomeAccess::Place HomeAccess::place_of(StateClass state, std::int32_t unit,
                                       std::int64_t chunk) const {
  BufferKey key{home_names(state).kind, unit};
  Place place;
  place.size_bytes = model_.home_bytes(state, unit, chunk);
  const auto whole = persistent_.find(key);
  if (whole != persistent_.end()) {
    const std::size_t begin = model_.home_offset(state, unit, chunk);
    place.tier = program_.buffers[whole->second].tier;
    place.bytes =
        bytes_of(program_, memory_, {Role::kSource, whole->second, begin, place.size_bytes});
    return place;
  }
  key.number = chunk;
  const auto extent = persistent_.find(key);
  TERRACE_CHECK(extent != persistent_.end());
  place.tier = Tier::kNvme;
  place.extent = memory_.extents.at(program_.buffers[extent->second].offset);
  return place;
}

void HomeAccess::copy(std::span<std::byte> target, std::span<const std::byte> source) {
  stream_->copy(target, source);
  stream_->synchronize();
}

void HomeAccess::transfer(IoRequest::Direction direction, const Place& place, std::size_t first,
                          std::span<std::byte> memory) {
  Waiter waiter;
  IoRequest request;
  request.direction = direction;
  request.extent = place.extent;
  request.offset = first;
  request.memory = memory;
  request.completion = &waiter;
  store_->submit(request);
  waiter.wait();
}

// The bounce buffer for the piece of an NVMe home that starts at `first`: whole blocks, or up to
// the extent's end.
std::span<std::byte> HomeAccess::piece_for(const Place& place, std::size_t first) {
  const std::size_t grain = place.tier == Tier::kNvme ? store_->block_bytes() : 1;
  const std::size_t most = bounce_.bytes().size() / grain * grain;
  return bounce_.bytes().first(std::min(most, place.size_bytes - first));
}

void HomeAccess::read(StateClass state, std::int32_t unit, std::int64_t chunk, std::size_t first,
                      std::span<std::byte> out) {
  const Place place = place_of(state, unit, chunk);
  TERRACE_CHECK_LE(first + out.size(), place.size_bytes);
  if (place.tier != Tier::kNvme) {
    copy(out, place.bytes.subspan(first, out.size()));
    return;
  }
  const std::size_t block = store_->block_bytes();
  std::size_t at = first;
  while (at < first + out.size()) {
    const std::size_t begin = at / block * block;
    const std::size_t wanted = (first + out.size() - begin + block - 1) / block * block;
    std::span<std::byte> piece = piece_for(place, begin);
    if (piece.size() > wanted) piece = piece.first(wanted);
    transfer(IoRequest::Direction::kRead, place, begin, piece);
    const std::size_t end = std::min(first + out.size(), begin + piece.size());
    std::memcpy(out.data() + (at - first), piece.data() + (at - begin), end - at);
    at = end;
  }
}

void HomeAccess::write(StateClass state, std::int32_t unit, std::int64_t chunk,
                       FunctionRef<void(std::size_t first, std::span<std::byte> piece)> fill) {
  const Place place = place_of(state, unit, chunk);
  for (std::size_t at = 0; at < place.size_bytes;) {
    const std::span<std::byte> piece = piece_for(place, at);
    fill(at, piece);
    if (place.tier == Tier::kNvme) {
      transfer(IoRequest::Direction::kWrite, place, at, piece);
    } else {
      copy(place.bytes.subspan(at, piece.size()), piece);
    }
    at += piece.size();
  }
}

}  // namespace terrace
