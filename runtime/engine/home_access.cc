#include "runtime/engine/home_access.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/bytes.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

constexpr std::size_t kBounceBytes = 4 * kMiB;

// The number of pieces of a home on NVMe that are being written while the next one is made.
constexpr std::size_t kWritesInFlight = 3;

// The completion of one request at a time, for a thread that waits for it.
class Waiter final : public IoCompletion {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    ended_ = false;
  }
  void done(const IoOutcome& outcome) noexcept override {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    ended_ = true;
    changed_.notify_all();
  }
  // Waits for the request, and throws if it failed. Returns at once where none was begun.
  void wait() {
    settle();
    outcome_.throw_if_failed();
  }
  // Waits for the request, whether or not it failed.
  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  IoOutcome outcome_;  // guarded by mutex_
  bool ended_ = true;
};

// The waiters of the writes of a home. When something throws, the writes that are still under way
// are waited for, because they use memory that the next home's writes use.
class Writes {
 public:
  ~Writes() {
    for (Waiter& waiter : waiters_) waiter.settle();
  }
  Waiter& of(std::size_t piece) { return waiters_.at(piece % (kWritesInFlight + 1)); }
  void wait() {
    for (Waiter& waiter : waiters_) waiter.wait();
  }

 private:
  std::array<Waiter, kWritesInFlight + 1> waiters_;
};

// Returns whether all bytes are zero: the store need not write them. The remainders of masters that
// bf16 holds exactly are, for example.
bool is_zero(std::span<const std::byte> bytes) {
  return bytes.front() == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace

HomeAccess::HomeAccess(const Program& program, const StepModel& model, const ExecutorMemory& memory,
                       Device& device, BlockStore* store)
    : program_(program),
      model_(model),
      memory_(memory),
      store_(store),
      piece_bytes_(store == nullptr ? kBounceBytes : std::max(kBounceBytes, store->block_bytes())),
      bounce_((store == nullptr ? 1 : kWritesInFlight + 1) * piece_bytes_, HostMemoryOptions{}),
      stream_(device.create_stream("homes")) {
  for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.life == Life::kPersistent) persistent_.emplace(buffer.key, b);
  }
}

std::size_t HomeAccess::buffer_bytes(bool has_drive) {
  return (has_drive ? kWritesInFlight + 1 : 1) * kBounceBytes;
}

HomeAccess::Place HomeAccess::place_of(StateClass state, std::int32_t group,
                                       std::int64_t chunk) const {
  BufferKey key{home_names(state).kind, group};
  Place place;
  place.size_bytes = model_.home_bytes(state, group, chunk);
  const auto whole = persistent_.find(key);
  if (whole != persistent_.end()) {
    const std::size_t begin = model_.home_offset(state, group, chunk);
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

void HomeAccess::begin(IoRequest::Direction direction, const PlacePart& part,
                       IoCompletion& completion) {
  IoRequest request;
  request.direction = direction;
  request.extent = part.place.extent;
  request.offset = part.first;
  request.memory = part.memory;
  request.completion = &completion;
  store_->submit(request);
}

// Returns the part of a home that begins at `first`, with a piece of the bounce buffer for it. On
// NVMe the part is whole blocks, or reaches to the extent's end.
HomeAccess::PlacePart HomeAccess::part_at(const Place& place, std::size_t first,
                                          std::size_t piece) {
  const std::size_t grain = place.tier == Tier::kNvme ? store_->block_bytes() : 1;
  const std::size_t most = piece_bytes_ / grain * grain;
  const std::size_t pieces = bounce_.bytes().size() / piece_bytes_;
  const std::span<std::byte> memory = bounce_.bytes().subspan(
      piece % pieces * piece_bytes_, std::min(most, place.size_bytes - first));
  return {place, first, memory};
}

void HomeAccess::read(StateClass state, std::int32_t group, std::int64_t chunk, std::size_t first,
                      std::span<std::byte> out) {
  const Place place = place_of(state, group, chunk);
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
    PlacePart part = part_at(place, begin, 0);
    if (part.memory.size() > wanted) part.memory = part.memory.first(wanted);
    Waiter waiter;
    waiter.begin();
    this->begin(IoRequest::Direction::kRead, part, waiter);
    waiter.wait();
    bytes_read_ += part.memory.size();
    const std::size_t end = std::min(first + out.size(), begin + part.memory.size());
    std::memcpy(out.data() + (at - first), part.memory.data() + (at - begin), end - at);
    at = end;
  }
}

void HomeAccess::write(StateClass state, std::int32_t group, std::int64_t chunk,
                       FunctionRef<bool(std::size_t first, std::span<std::byte> piece)> fill) {
  const Place place = place_of(state, group, chunk);
  Writes writes;
  std::size_t number = 0;
  for (std::size_t at = 0; at < place.size_bytes; ++number) {
    Waiter& written = writes.of(number);
    written.wait();
    const PlacePart part = part_at(place, at, number);
    const bool has_content = fill(at, part.memory);
    if (!has_content && place.tier != Tier::kNvme) std::ranges::fill(part.memory, std::byte{0});
    if (place.tier == Tier::kNvme && (!has_content || is_zero(part.memory))) {
      store_->set_zero(place.extent, part.first, part.memory.size());
    } else if (place.tier == Tier::kNvme) {
      written.begin();
      begin(IoRequest::Direction::kWrite, part, written);
    } else {
      copy(place.bytes.subspan(at, part.memory.size()), part.memory);
    }
    at += part.memory.size();
  }
  writes.wait();
}

}  // namespace terrace
