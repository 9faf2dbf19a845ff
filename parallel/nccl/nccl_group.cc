#include "parallel/nccl/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "memory/cuda/cuda_error.h"

namespace terrace {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(100);
constexpr auto kSettleInterval = std::chrono::microseconds(20);

std::string text_of(ncclResult_t result, ncclComm_t communicator) {
  const char* const last = ncclGetLastError(communicator);
  return fmt::format("NCCL: {}{}{}", ncclGetErrorString(result), *last == '\0' ? "" : ": ", last);
}

}  // namespace

NcclGroup::NcclGroup(int ordinal, const CommunicatorOptions& options)
    : ordinal_(ordinal), timeout_(options.timeout), ring_(kPendingMax) {
  use_cuda_device(ordinal_);
  for (Pending& pending : ring_) {
    check_cuda(cudaEventCreateWithFlags(&pending.event, cudaEventDisableTiming), "cudaEventCreate",
               "NCCL");
  }
  watcher_ = std::thread([this] { work(); });
}

NcclGroup::~NcclGroup() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    stopping_changed_.notify_one();
  }
  watcher_.join();
  for (const Pending& pending : ring_) cudaEventDestroy(pending.event);
}

void NcclGroup::add(ncclComm_t communicator, const std::string& what) {
  {
    const std::scoped_lock lock(mutex_);
    communicators_.push_back(communicator);
  }
  settle(ncclInProgress, communicator, what);
}

void NcclGroup::remove(ncclComm_t communicator, const std::string& name) noexcept {
  const std::scoped_lock lock(mutex_);
  for (Pending& pending : ring_) {
    if (pending.name == &name) pending.deadline = Time::max();
  }
  if (std::erase(communicators_, communicator) != 0) ncclCommDestroy(communicator);
}

void NcclGroup::throw_if_aborted(const std::string& what) const {
  const std::scoped_lock lock(mutex_);
  if (reason_) throw CommError(fmt::format("{} was ended: {}", what, *reason_), "");
}

void NcclGroup::settle(ncclResult_t result, ncclComm_t communicator, const std::string& what) {
  const Time deadline = std::chrono::steady_clock::now() + timeout_;
  while (result == ncclInProgress) {
    throw_if_aborted(what);
    if (std::chrono::steady_clock::now() > deadline) {
      abort(fmt::format("{} did not begin within the timeout: a rank is missing", what));
      continue;
    }
    std::this_thread::sleep_for(kSettleInterval);
    const std::scoped_lock lock(mutex_);
    if (reason_) continue;
    if (ncclCommGetAsyncError(communicator, &result) != ncclSuccess) result = ncclInternalError;
  }
  if (result == ncclSuccess) return;
  abort(fmt::format("{}: {}", what, text_of(result, nullptr)));
  throw_if_aborted(what);
}

void NcclGroup::watch(const CollectiveCall& call, const std::string& name, cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  // A full ring has 256 older calls: the watch of those is enough.
  if (next_ - first_ == kPendingMax) return;
  Pending& pending = ring_[next_ % kPendingMax];
  check_cuda(cudaEventRecord(pending.event, stream), "cudaEventRecord", name);
  pending.deadline = std::chrono::steady_clock::now() + timeout_;
  pending.call = call;
  pending.name = &name;
  ++next_;
}

void NcclGroup::abort(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  abort_locked(reason);
}

void NcclGroup::abort_locked(const std::string& reason) {
  if (reason_) return;
  reason_ = reason;
  for (const ncclComm_t communicator : communicators_) ncclCommAbort(communicator);
  communicators_.clear();
  first_ = next_;
}

// Under mutex_.
std::string NcclGroup::trouble() {
  for (const ncclComm_t communicator : communicators_) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(communicator, &state);
    if (state != ncclSuccess && state != ncclInProgress) return text_of(state, communicator);
  }
  // Streams differ, so a later call may be complete before an earlier one.
  while (first_ != next_ && cudaEventQuery(ring_[first_ % kPendingMax].event) == cudaSuccess) {
    ++first_;
  }
  if (first_ == next_) return {};
  const Pending& oldest = ring_[first_ % kPendingMax];
  if (std::chrono::steady_clock::now() < oldest.deadline) return {};
  return fmt::format("{} on communicator '{}' is not complete after the timeout: a rank is missing",
                     describe(oldest.call), *oldest.name);
}

void NcclGroup::work() {
  use_cuda_device(ordinal_);
  std::unique_lock lock(mutex_);
  while (!stopping_changed_.wait_for(lock, kWatchInterval, [this] { return stopping_; })) {
    if (reason_) continue;
    const std::string reason = trouble();
    if (!reason.empty()) abort_locked(reason);
  }
}

}  // namespace terrace
