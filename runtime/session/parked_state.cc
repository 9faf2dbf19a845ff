#include "runtime/session/parked_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "runtime/session/session_error.h"

namespace terrace {
namespace {

// Counts the requests of a transfer, and keeps the first failure.
class TransferEnd final : public IoCompletion {
 public:
  explicit TransferEnd(std::size_t requests) : left_(requests) {}

  void done(const IoOutcome& outcome) noexcept override {
    // Notified under the mutex: the object may go as soon as all have ended.
    const std::scoped_lock lock(mutex_);
    if (outcome_.kind == IoOutcome::Kind::kDone && outcome.kind != IoOutcome::Kind::kDone) {
      outcome_ = outcome;
    }
    if (--left_ == 0) ended_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return left_ == 0; });
    outcome_.throw_if_failed();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_:
  std::size_t left_;
  IoOutcome outcome_;
};

}  // namespace

NvmeStoreOptions parking_of(const std::string& directory, const NvmeStoreOptions& own,
                            const BlockStore* store) {
  NvmeStoreOptions where = own;
  where.named_files = false;
  // Measuring the drives would take longer than it could save.
  where.probe.from_bytes = std::numeric_limits<std::uint64_t>::max();
  if (!directory.empty()) {
    where.directories = {{.path = directory, .budget_bytes = {}}};
    return where;
  }
  if (own.directories.empty()) {
    throw SessionError(SessionProblem::kArgument,
                       "the session is paused, and has no NVMe directory to put its memory into",
                       "name a directory");
  }
  if (store == nullptr) return where;
  const std::vector<StorePath> used = store->paths();
  for (std::size_t i = 0; i < std::min(used.size(), where.directories.size()); ++i) {
    std::optional<std::size_t>& budget = where.directories[i].budget_bytes;
    if (budget) *budget -= std::min<std::size_t>(*budget, used[i].used_bytes);
  }
  return where;
}

ParkedState::ParkedState(NvmeStoreOptions where, std::span<const std::size_t> sizes, Log& log) {
  where.expected_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  store_ = make_nvme_store(where, log);
  for (const std::size_t size : sizes) extents_.push_back(store_->create_extent(size));
  store_->prepare();
}

void ParkedState::write(std::size_t first, std::span<const std::span<std::byte>> blocks) {
  transfer(IoRequest::Direction::kWrite, first, blocks);
}

void ParkedState::read(std::size_t first, std::span<const std::span<std::byte>> blocks) {
  transfer(IoRequest::Direction::kRead, first, blocks);
}

void ParkedState::transfer(IoRequest::Direction direction, std::size_t first,
                           std::span<const std::span<std::byte>> blocks) {
  if (blocks.empty()) return;
  TransferEnd end(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    store_->submit({.direction = direction,
                    .extent = extents_.at(first + i),
                    .memory = blocks[i],
                    .completion = &end});
  }
  end.wait();
}

void append_blocks(std::span<std::byte> memory, std::vector<std::span<std::byte>>& blocks) {
  while (!memory.empty()) {
    blocks.push_back(memory.first(std::min(memory.size(), ParkedState::kBlockBytes)));
    memory = memory.subspan(blocks.back().size());
  }
}

}  // namespace terrace
