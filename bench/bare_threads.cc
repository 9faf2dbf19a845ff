#include "bench/bare_threads.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace terrace {
namespace {

class BareThreads {
 public:
  BareThreads(DirectFile& file, const FileRange& range, std::span<std::byte> memory,
              const BareThreadLoad& load)
      : file_(file),
        memory_(memory),
        block_bytes_(load.shape.block_bytes),
        threads_(static_cast<std::size_t>(load.shape.depth)),
        mix_(load.mix),
        blocks_(range.bytes / block_bytes_ / (mix_ == IoMix::kMixed ? 2 : 1)),
        reads_begin_(range.begin),
        writes_begin_(mix_ == IoMix::kMixed ? range.begin + blocks_ * block_bytes_ : range.begin) {
    TERRACE_CHECK_LE(threads_ * block_bytes_, memory.size());
    TERRACE_CHECK_LE(1U, blocks_);
  }

  std::uint64_t run(double seconds) {
    const std::int64_t until_ns = clock_.now_ns() + static_cast<std::int64_t>(seconds * 1e9);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < threads_; ++i) {
        threads.emplace_back([this, i, until_ns] { carry(i, until_ns); });
      }
    }
    if (failure_) throw IoError(*failure_);
    return carried_.load();
  }

 private:
  // Carries blocks, in turn, through the places of the memory that are this thread's alone.
  void carry(std::size_t thread, std::int64_t until_ns) noexcept {
    const std::size_t places = memory_.size() / block_bytes_;
    std::size_t place = thread;
    do {
      transfer(started_.fetch_add(1), memory_.subspan(place * block_bytes_, block_bytes_));
      place = place + threads_ < places ? place + threads_ : thread;
    } while (clock_.now_ns() < until_ns && !failed_.load());
  }

  // Carries one block. A mixed load reads one half of the range and writes the other, in turn.
  void transfer(std::uint64_t number, std::span<std::byte> memory) noexcept {
    const bool mixed = mix_ == IoMix::kMixed;
    const bool writes = mix_ == IoMix::kWrite || (mixed && number % 2 == 1);
    const std::uint64_t block = (mixed ? number / 2 : number) % blocks_;
    const std::uint64_t offset = (writes ? writes_begin_ : reads_begin_) + block * block_bytes_;
    const std::int64_t carried =
        writes ? file_.write_at(memory, offset) : file_.read_at(memory, offset);
    if (carried == static_cast<std::int64_t>(block_bytes_)) {
      carried_.fetch_add(block_bytes_);
      return;
    }
    const std::scoped_lock lock(mutex_);
    failure_ = {.operation = "transfer of a block",
                .path = file_.path(),
                .offset = offset,
                .size = block_bytes_,
                .error_number = carried < 0 ? static_cast<int>(-carried) : 0};
    failed_.store(true);
  }

  DirectFile& file_;
  const std::span<std::byte> memory_;
  const std::size_t block_bytes_;
  const std::size_t threads_;
  const IoMix mix_;
  const std::uint64_t blocks_;  // of a direction
  const std::uint64_t reads_begin_, writes_begin_;
  const SystemClock clock_;
  std::atomic<std::uint64_t> started_{0};
  std::atomic<std::uint64_t> carried_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<IoError::Where> failure_;  // guarded by mutex_ while threads run
};

}  // namespace

std::uint64_t run_bare_threads(DirectFile& file, const FileRange& range,
                               std::span<std::byte> memory, const BareThreadLoad& load) {
  return BareThreads(file, range, memory, load).run(load.seconds);
}

}  // namespace terrace
