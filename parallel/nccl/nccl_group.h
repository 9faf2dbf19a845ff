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

// A rank's NCCL communicators that were made together: what aborts one aborts all, and the host's
// communicators, `meeting`, which outlives it; null where there are none. Owns them, and the thread
// that watches their calls.
//
// They end together, each in a thread of its own: the end of one waits for ranks of the same host,
// which may be ending another one first. So the group's end waits for the other ranks', as long as
// a call would; when they were aborted, a moment. What has not ended by then is left to the
// process.
// Any thread, but one at a time for one communicator.
class NcclGroup {
 public:
  // A call under way.
  struct Pending;

  NcclGroup(int ordinal, Communicator* meeting, const CommunicatorOptions& options);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int ordinal() const { return ordinal_; }

  // Takes over a communicator that may still be coming up, and waits until it is.
  void add(ncclComm_t communicator, const std::string& what);
  // Splits `communicator` and takes over this rank's part. Throws CommError, naming `what`.
  ncclComm_t split(ncclComm_t communicator, int color, int key, ncclConfig_t& config,
                   const std::string& what);
  // Calls NCCL, with no abort meanwhile, and waits until it has taken the call in. Throws
  // CommError, naming `what`, where the group was aborted or NCCL fails.
  void enqueue(ncclComm_t communicator, const std::string& what, FunctionRef<ncclResult_t()> call);
  // Waits until NCCL has taken a call in (it returned `result`); throws CommError if it did not.
  void settle(ncclResult_t result, ncclComm_t communicator, const std::string& what);
  // What is enqueued on the stream between the two is a call: when the stream comes to it, its
  // timeout begins. Null where as many as are watched are under way.
  Pending* watch_from(const CollectiveCall& call, const std::string& name, cudaStream_t stream);
  void watch_to(Pending* pending, cudaStream_t stream);

  // A number in device memory, for sums that are there to wait for the other ranks.
  std::int32_t* barrier_number() const;

  // Both return at once: communicators end in threads of their own.
  void abort(const std::string& reason) noexcept;
  // Likewise, but `meeting` does not hear of it: who leaves with an error tells the others what it
  // was.
  void abort_here(const std::string& reason) noexcept;
  std::optional<std::string> abort_reason() const;

 private:
  static constexpr std::size_t kPendingMax = 256;

  // What NCCL uses until its communicators have ended, and the count of those that are ending.
  // Outlives the group where they take too long.
  struct Ending;

  void work();
  // Under mutex_: ends all that are there, by the call.
  void end_all(ncclResult_t (*end)(ncclComm_t)) noexcept;
  void wait_for_ends() noexcept;
  void throw_if_aborted(const std::string& what) const;
  void throw_reason(const std::string& what) const;  // under mutex_
  std::optional<std::string> trouble();              // why to abort, under mutex_

  const int ordinal_;
  Communicator* const meeting_;
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_changed_;
  const std::shared_ptr<Ending> ending_;
  // Guarded by mutex_.
  std::vector<ncclComm_t> communicators_;
  std::vector<Pending> ring_;  // of events: nothing is allocated for a call
  std::size_t first_ = 0;      // of the calls under way, counted on; at first_ % kPendingMax
  std::size_t next_ = 0;
  std::optional<std::string> reason_;
  bool stopping_ = false;
  // Last: it uses all of the above.
  std::thread watcher_;
};

}  // namespace terrace
