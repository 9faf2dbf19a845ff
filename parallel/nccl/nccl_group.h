#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "parallel/communicator.h"

namespace terrace {

// A rank's NCCL communicators that were made together. An abort of one aborts all of them, and also
// `meeting`, the host's communicators, which outlives the group (null where there are none). Owns
// the NCCL communicators, and the thread that watches their calls.
//
// They end together, each in a thread of its own, because the end of one waits for ranks of the
// same host, which may be ending another one first. So the group's end waits for the other ranks'
// ends as long as a call would; if the group was aborted, only a moment. Communicators that have
// not ended by then are left to the process. Any thread may call it, but only one at a time for one
// communicator.
class NcclGroup {
 public:
  // A call under way.
  struct Pending;

  NcclGroup(int ordinal, Communicator* meeting, const CommunicatorOptions& options);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int ordinal() const { return ordinal_; }

  // Takes over a communicator that may still be coming up, and waits until it is up.
  void add(ncclComm_t communicator, const std::string& what);
  // Splits `communicator` and takes over this rank's part. Throws CommError, naming `what`.
  ncclComm_t split(ncclComm_t communicator, int color, int key, ncclConfig_t& config,
                   const std::string& what);
  // Calls NCCL, allowing no abort meanwhile, and waits until NCCL has accepted the call. Throws
  // CommError, naming `what`, where the group was aborted or NCCL fails.
  void enqueue(ncclComm_t communicator, const std::string& what, FunctionRef<ncclResult_t()> call);
  // Waits until NCCL has accepted a call (which returned `result`); throws CommError if it did not.
  void settle(ncclResult_t result, ncclComm_t communicator, const std::string& what);
  // Work that is enqueued on the stream between watch_from() and watch_to() is one call. Its
  // timeout begins when the stream comes to it. watch_from() returns null where the largest number
  // of watched calls is under way.
  Pending* watch_from(const CollectiveCall& call, const std::string& name, cudaStream_t stream);
  void watch_to(Pending* pending, cudaStream_t stream);

  // Returns a number in device memory, for sums that serve only to wait for the other ranks.
  std::int32_t* barrier_number() const;

  // Both functions return at once: communicators end in threads of their own.
  void abort(const std::string& reason) noexcept;
  // Does the same, but does not tell `meeting`: a rank that leaves with an error tells the others
  // itself what the error was.
  void abort_here(const std::string& reason) noexcept;
  std::optional<std::string> abort_reason() const;

 private:
  static constexpr std::size_t kPendingMax = 256;

  // The objects that NCCL uses until its communicators have ended, and the count of communicators
  // that are ending. They outlive the group if the ends take too long.
  struct Ending;

  void work();
  // Called under mutex_. Ends all communicators by calling `end` on each.
  void end_all(ncclResult_t (*end)(ncclComm_t)) noexcept;
  void wait_for_ends() noexcept;
  void throw_if_aborted(const std::string& what) const;
  void throw_reason(const std::string& what) const;  // called under mutex_
  std::optional<std::string> trouble();              // why to abort; called under mutex_

  const int ordinal_;
  Communicator* const meeting_;
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_changed_;
  const std::shared_ptr<Ending> ending_;
  // Guarded by mutex_.
  std::vector<ncclComm_t> communicators_;
  std::vector<Pending> ring_;  // with events: a call allocates nothing
  std::size_t first_ = 0;      // number of the first call under way; at first_ % kPendingMax
  std::size_t next_ = 0;
  std::optional<std::string> reason_;
  bool stopping_ = false;
  // Declared last, because the thread uses all members above.
  std::thread watcher_;
};

}  // namespace terrace
