#include "offload/drive_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace terrace {
namespace {

constexpr std::array kShapes = {
    DriveShape{256 * kKiB, 8}, DriveShape{256 * kKiB, 16}, DriveShape{256 * kKiB, 64},
    DriveShape{512 * kKiB, 8}, DriveShape{kMiB, 4},        DriveShape{kMiB, 8},
    DriveShape{kMiB, 32},      DriveShape{4 * kMiB, 4},    DriveShape{4 * kMiB, 8}};
constexpr DriveShape kWriteShape = {kMiB, 8};
constexpr int kRounds = 3;
constexpr double kReadSeconds = 0.5 / (kRounds * kShapes.size());
constexpr double kWriteSeconds = 0.25;

constexpr std::size_t kMemoryBytes = 32 * kMiB;
static_assert(std::ranges::all_of(kShapes, [](const DriveShape& shape) {
  return shape.block_bytes * static_cast<std::size_t>(shape.depth) <= kMemoryBytes &&
         2 * shape.block_bytes <= kProbeBytesMin;
}));

// Memory on huge pages where there are any, like the arenas of training.
class ProbeMemory {
 public:
  ProbeMemory()
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, kMemoryBytes))) {
    TERRACE_CHECK(bytes_ != nullptr);
    ::madvise(bytes_.get(), kMemoryBytes, MADV_HUGEPAGE);
    // The bytes are not zeros, which a drive may keep without writing them.
    std::uint8_t value = 0;
    for (std::size_t i = 0; i < kMemoryBytes; ++i) bytes_.get()[i] = std::byte{value += 37};
  }
  std::span<std::byte> bytes() { return {bytes_.get(), kMemoryBytes}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static constexpr std::size_t kHugePageBytes = 2 * kMiB;
  std::unique_ptr<std::byte, Free> bytes_;
};

// Keeps as many blocks in flight as the shape says, in the order of the file. Uses all of the
// memory in turn, whatever the shape, so that the result does not depend on what is in the caches.
class PieceLoop {
 public:
  PieceLoop(IoEngine& engine, const DriveShape& shape, std::span<std::byte> memory)
      : engine_(engine), shape_(shape), slots_(static_cast<std::size_t>(shape.depth)) {
    for (Slot& slot : slots_) slot.loop = this;
    for (std::size_t at = 0; at < memory.size(); at += shape.block_bytes) {
      rested_.push_back(memory.subspan(at, shape.block_bytes));
    }
  }

  struct Bounds {
    std::uint64_t file_bytes = 0;
    std::uint64_t bytes_min = 0;  // transferred even when the time is over
    std::uint64_t bytes_max = 0;
    double seconds = 0;
  };
  struct Carried {
    std::uint64_t bytes = 0;
    double gb_per_s = 0;
    bool failed = false;
  };

  Carried run(IoDirection direction, const Bounds& bounds) {
    direction_ = direction;
    bounds_ = bounds;
    begin_ns_ = SystemClock().now_ns();
    for (Slot& slot : slots_) start(slot);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return in_flight_ == 0; });
    const auto seconds = static_cast<double>(SystemClock().now_ns() - begin_ns_) * 1e-9;
    return {.bytes = started_bytes_,
            .gb_per_s = static_cast<double>(started_bytes_) * 1e-9 / seconds,
            .failed = failed_};
  }

 private:
  struct Slot final : PieceCompletion {
    void piece_done(PieceResult result) noexcept override { loop->ended(*this, result); }

    PieceLoop* loop = nullptr;
    std::span<std::byte> memory;
  };

  bool goes_on() const {
    if (failed_ || started_bytes_ + shape_.block_bytes > bounds_.bytes_max) return false;
    const std::int64_t ns = SystemClock().now_ns() - begin_ns_;
    return started_bytes_ < bounds_.bytes_min || static_cast<double>(ns) < bounds_.seconds * 1e9;
  }

  void start(Slot& slot) {
    Piece piece{.direction = direction_, .memory = {}, .completion = &slot};
    {
      const std::lock_guard lock(mutex_);
      if (!goes_on()) return;
      slot.memory = rested_.front();
      rested_.pop_front();
      piece.memory = slot.memory;
      const std::uint64_t blocks = bounds_.file_bytes / shape_.block_bytes;
      piece.offset = started_bytes_ / shape_.block_bytes % blocks * shape_.block_bytes;
      started_bytes_ += shape_.block_bytes;
      ++in_flight_;
    }
    engine_.submit(piece);
  }

  void ended(Slot& slot, PieceResult result) {
    {
      const std::lock_guard lock(mutex_);
      rested_.push_back(slot.memory);
      if (!result.complete) failed_ = true;
    }
    start(slot);
    const std::lock_guard lock(mutex_);
    if (--in_flight_ == 0) ended_.notify_one();
  }

  IoEngine& engine_;
  const DriveShape shape_;
  IoDirection direction_ = IoDirection::kRead;
  Bounds bounds_;
  std::int64_t begin_ns_ = 0;
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<std::span<std::byte>> rested_;  // guarded by mutex_: memory with nothing in flight
  std::uint64_t started_bytes_ = 0;          // guarded by mutex_
  std::size_t in_flight_ = 0;                // guarded by mutex_
  bool failed_ = false;                      // guarded by mutex_
};

PieceLoop::Carried carry(const ProbeTarget& target, std::span<std::byte> memory,
                         const DriveShape& shape, IoDirection direction,
                         const PieceLoop::Bounds& bounds) {
  std::unique_ptr<IoEngine> engine = target.make_engine(shape.depth);
  engine->register_memory(memory);
  PieceLoop loop(*engine, shape, memory);
  const PieceLoop::Carried carried = loop.run(direction, bounds);
  engine.reset();  // ends its threads, which may still be leaving the loop
  return carried;
}

}  // namespace

std::optional<DriveFacts> probe_drive(const ProbeTarget& target) {
  TERRACE_CHECK_LE(kProbeBytesMin, target.file_bytes);
  ProbeMemory memory;
  const PieceLoop::Carried written = carry(target, memory.bytes(), kWriteShape, IoDirection::kWrite,
                                           {.file_bytes = target.file_bytes,
                                            .bytes_min = kProbeBytesMin,
                                            .bytes_max = target.file_bytes,
                                            .seconds = kWriteSeconds});
  if (written.failed) return std::nullopt;
  const PieceLoop::Bounds reads = {.file_bytes = written.bytes,
                                   .bytes_min = kProbeBytesMin / kRounds,
                                   .bytes_max = UINT64_MAX,
                                   .seconds = kReadSeconds};
  std::array<std::array<double, kRounds>, kShapes.size()> rates = {};
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const PieceLoop::Carried read =
          carry(target, memory.bytes(), kShapes[i], IoDirection::kRead, reads);
      if (read.failed) return std::nullopt;
      rates[i][round] = read.gb_per_s;
    }
  }
  std::vector<TriedShape> tried;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    std::ranges::sort(rates[i]);
    tried.push_back({.shape = kShapes[i], .gb_per_s = rates[i][kRounds / 2]});
  }
  const TriedShape best = best_shape(tried);
  return DriveFacts{
      .shape = best.shape, .read_gb_per_s = best.gb_per_s, .write_gb_per_s = written.gb_per_s};
}

}  // namespace terrace
