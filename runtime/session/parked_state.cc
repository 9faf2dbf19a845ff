#include "runtime/session/parked_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

#include "runtime/session/session_error.h"

namespace terrace {
namespace {

// Counts the requests of a transfer, and keeps the first failure.
class TransferEnd final : public IoCompletion {
 public:
  explicit TransferEnd(std::size_t requests) : left_(requests) {}

  void done(const IoOutcome& outcome) noexcept override {
    // Notifies under the mutex, because the object may be destroyed as soon as all have ended.
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
                            std::span<const StorePath> used) {
  NvmeStoreOptions where = own;
  where.expected_bytes = 0;
  where.named_files = false;
  // Measuring the drives would take longer than it could save.
  where.probe.from_bytes = std::numeric_limits<std::uint64_t>::max();
  if (!directory.empty()) {
    where.directories = {{.path = directory, .budget_bytes = {}}};
    return where;
  }
  if (own.directories.empty()) {
    throw SessionError(SessionProblem::kArgument,
                       "the session is paused, but has no NVMe directory for its memory",
                       "name a directory");
  }
  for (std::size_t i = 0; i < std::min(used.size(), where.directories.size()); ++i) {
    std::optional<std::size_t>& budget = where.directories[i].budget_bytes;
    if (budget) *budget -= std::min<std::size_t>(*budget, used[i].used_bytes);
  }
  return where;
}

ParkedState::ParkedState(const NvmeStoreOptions& where,
                         std::span<const std::span<std::byte>> memory, Log& log) {
  NvmeStoreOptions sized = where;
  for (std::span<std::byte> left : memory) {
    sized.expected_bytes += left.size();
    while (!left.empty()) {
      blocks_.push_back(left.first(std::min(left.size(), kBlockBytes)));
      left = left.subspan(blocks_.back().size());
    }
  }
  if (blocks_.empty()) return;
  store_ = make_nvme_store(sized, log);
  for (const std::span<std::byte> block : blocks_) {
    extents_.push_back(store_->create_extent(block.size()));
  }
  store_->prepare();
  transfer(IoRequest::Direction::kWrite);
}

void ParkedState::transfer(IoRequest::Direction direction) {
  if (blocks_.empty()) return;
  TransferEnd end(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    store_->submit(
        {.direction = direction, .extent = extents_[i], .memory = blocks_[i], .completion = &end});
  }
  end.wait();
}

}  // namespace terrace
