#include "parallel/nccl/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "memory/cuda/cuda_error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWatchInterval = std::chrono::milliseconds(100);
constexpr auto kSettleInterval = std::chrono::microseconds(20);
// How long aborted communicators may take to end. Other ranks of the host must hear of the abort,
// and may hear of it from this rank only when it has left.
constexpr auto kAbortedMax = std::chrono::seconds(2);
constexpr std::size_t kNameBytes = 64;  // enough for most communicators

std::string text_of(ncclResult_t result, ncclComm_t communicator) {
  const char* const last = ncclGetLastError(communicator);
  return fmt::format("NCCL: {}{}{}", ncclGetErrorString(result), *last == '\0' ? "" : ": ", last);
}

// Makes the GPU current, so that the members that are initialised next are made on it.
int made_current(int ordinal) {
  use_cuda_device(ordinal);
  return ordinal;
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using OwnedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

OwnedEvent make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", "NCCL");
  return OwnedEvent(event);
}

struct FreeNumber {
  void operator()(std::int32_t* number) const { cudaFree(number); }
};
using DeviceNumber = std::unique_ptr<std::int32_t, FreeNumber>;

DeviceNumber make_device_number() {
  std::int32_t* number = nullptr;
  check_cuda(cudaMalloc(&number, sizeof(*number)), "cudaMalloc", "NCCL");
  return DeviceNumber(number);
}

}  // namespace

struct NcclGroup::Pending {
  OwnedEvent begin = make_event();
  OwnedEvent end = make_event();
  CollectiveCall call;
  std::string name;                           // the communicator's
  bool is_enqueued = false;                   // if not, the events are of an earlier call
  std::optional<Clock::time_point> deadline;  // set when its stream was seen to have come to it

  bool is_over() const { return is_enqueued && cudaEventQuery(end.get()) == cudaSuccess; }
  bool is_late(std::chrono::nanoseconds timeout) {
    if (!is_enqueued || is_over()) return false;
    const Clock::time_point now = Clock::now();
    if (!deadline && cudaEventQuery(begin.get()) == cudaSuccess) deadline = now + timeout;
    return deadline && now > *deadline;
  }
};

struct NcclGroup::Ending {
  DeviceNumber barrier_number = make_device_number();
  // ncclCommSplit() writes its result here, some time after the call has returned. Guarded by the
  // group's mutex.
  std::deque<ncclComm_t> parts;

  std::mutex mutex;
  std::condition_variable left_changed;
  int left = 0;  // communicators that are ending; guarded by mutex

  // Returns whether all communicators have ended within the limit.
  bool wait(std::chrono::nanoseconds limit) {
    std::unique_lock lock(mutex);
    return left_changed.wait_for(lock, limit, [this] { return left == 0; });
  }
  void add(int count) {
    const std::scoped_lock lock(mutex);
    left += count;
    left_changed.notify_all();
  }
};

NcclGroup::NcclGroup(int ordinal, Communicator* meeting, const CommunicatorOptions& options)
    : ordinal_(made_current(ordinal)),
      meeting_(meeting),
      timeout_(options.timeout),
      ending_(std::make_shared<Ending>()),
      ring_(kPendingMax) {
  for (Pending& pending : ring_) pending.name.reserve(kNameBytes);
  watcher_ = std::thread([this] { work(); });
}

NcclGroup::~NcclGroup() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    stopping_changed_.notify_one();
  }
  watcher_.join();
  cudaSetDevice(ordinal_);
  {
    const std::scoped_lock lock(mutex_);
    end_all(ncclCommDestroy);
  }
  wait_for_ends();
}

// Ignores the results of the ends: no one could do anything about an error any more.
void NcclGroup::end_all(ncclResult_t (*end)(ncclComm_t)) noexcept {
  for (const ncclComm_t communicator : std::exchange(communicators_, {})) {
    ending_->add(1);
    try {
      std::thread([communicator, end, ordinal = ordinal_, ending = ending_] {
        cudaSetDevice(ordinal);  // fails if the GPU has failed: the end is called all the same
        end(communicator);
        ending->add(-1);
      }).detach();
    } catch (const std::system_error&) {  // no more threads: it is left to the process
      ending_->add(-1);
    }
  }
}

// Called by the last owner of the group, so no other thread changes anything.
void NcclGroup::wait_for_ends() noexcept {
  Clock::time_point deadline = Clock::now() + timeout_;
  while (!ending_->wait(kWatchInterval)) {
    const bool is_aborted = reason_ || (meeting_ != nullptr && meeting_->abort_reason());
    const Clock::time_point now = Clock::now();
    if (is_aborted) deadline = std::min(deadline, now + kAbortedMax);
    if (now > deadline) return;
  }
}

std::int32_t* NcclGroup::barrier_number() const { return ending_->barrier_number.get(); }

void NcclGroup::add(ncclComm_t communicator, const std::string& what) {
  {
    const std::scoped_lock lock(mutex_);
    communicators_.push_back(communicator);
    if (reason_) end_all(ncclCommAbort);  // the abort came first
  }
  settle(ncclInProgress, communicator, what);
}

ncclComm_t NcclGroup::split(ncclComm_t communicator, int color, int key, ncclConfig_t& config,
                            const std::string& what) {
  ncclComm_t* part = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    part = &ending_->parts.emplace_back(nullptr);
  }
  enqueue(communicator, what,
          [&] { return ncclCommSplit(communicator, color, key, part, &config); });
  // NCCL may report success before the new communicator is there.
  const std::atomic_ref<ncclComm_t> written(*part);
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (written.load() == nullptr) {
    throw_if_aborted(what);
    if (Clock::now() > deadline) {
      abort(fmt::format("{} did not end within the timeout: a rank is missing", what));
    }
    settle(ncclInProgress, communicator, what);
  }
  const ncclComm_t made = written.load();
  add(made, what);
  // The new communicator may be there before NCCL reports success.
  settle(ncclInProgress, communicator, what);
  return made;
}

void NcclGroup::throw_reason(const std::string& what) const {
  if (reason_) throw CommError(fmt::format("{} was aborted: {}", what, *reason_), "");
}

void NcclGroup::throw_if_aborted(const std::string& what) const {
  const std::scoped_lock lock(mutex_);
  throw_reason(what);
}

std::optional<std::string> NcclGroup::abort_reason() const {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

void NcclGroup::enqueue(ncclComm_t communicator, const std::string& what,
                        FunctionRef<ncclResult_t()> call) {
  ncclResult_t result = ncclSuccess;
  {
    const std::scoped_lock lock(mutex_);
    throw_reason(what);
    result = call();
  }
  settle(result, communicator, what);
}

void NcclGroup::settle(ncclResult_t result, ncclComm_t communicator, const std::string& what) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (result == ncclInProgress) {
    // A thread of NCCL may still be working on the call, and on its stream.
    if (abort_reason()) ending_->wait(kAbortedMax);
    throw_if_aborted(what);
    if (Clock::now() > deadline) {
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

NcclGroup::Pending* NcclGroup::watch_from(const CollectiveCall& call, const std::string& name,
                                          cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  // A full ring has 256 older calls, and watching those is enough.
  if (next_ - first_ == kPendingMax) return nullptr;
  Pending& pending = ring_[next_ % kPendingMax];
  check_cuda(cudaEventRecord(pending.begin.get(), stream), "cudaEventRecord", name);
  pending.call = call;
  pending.name = name;
  pending.is_enqueued = false;
  pending.deadline.reset();
  ++next_;
  return &pending;
}

void NcclGroup::watch_to(Pending* pending, cudaStream_t stream) {
  if (pending == nullptr) return;
  const std::scoped_lock lock(mutex_);
  check_cuda(cudaEventRecord(pending->end.get(), stream), "cudaEventRecord", pending->name);
  pending->is_enqueued = true;
}

void NcclGroup::abort(const std::string& reason) noexcept {
  abort_here(reason);
  if (meeting_ != nullptr) meeting_->abort(reason);
}

// Ends all communicators at once. Freeing the memory of one waits for the kernels of all
// communicators on the GPU, including the meeting's, and those kernels end only when they are told
// to.
void NcclGroup::abort_here(const std::string& reason) noexcept {
  const std::scoped_lock lock(mutex_);
  if (reason_) return;
  reason_ = reason;  // from now on no one calls NCCL
  first_ = next_;
  end_all(ncclCommAbort);
}

std::optional<std::string> NcclGroup::trouble() {
  for (const ncclComm_t communicator : communicators_) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(communicator, &state);
    if (state != ncclSuccess && state != ncclInProgress) return text_of(state, communicator);
  }
  while (first_ != next_ && ring_[first_ % kPendingMax].is_over()) ++first_;
  for (std::size_t at = first_; at != next_; ++at) {
    Pending& pending = ring_[at % kPendingMax];
    if (!pending.is_late(timeout_)) continue;
    return fmt::format(
        "{} on communicator '{}' did not complete within the timeout: a rank is missing",
        describe(pending.call), pending.name);
  }
  return meeting_ == nullptr ? std::nullopt : meeting_->abort_reason();
}

void NcclGroup::work() {
  use_cuda_device(ordinal_);
  std::unique_lock lock(mutex_);
  while (!stopping_changed_.wait_for(lock, kWatchInterval, [this] { return stopping_; })) {
    if (reason_) continue;
    const std::optional<std::string> reason = trouble();
    if (!reason) continue;
    lock.unlock();
    abort(*reason);
    lock.lock();
  }
}

}  // namespace terrace
