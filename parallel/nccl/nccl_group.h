#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace terrace {

// This process's NCCL communicators that were made together: what aborts one aborts all. Owns them,
// and the thread that watches their calls.
class NcclGroup {
 public:
  NcclGroup(int ordinal, const CommunicatorOptions& options);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int ordinal() const { return ordinal_; }

  // Takes over a communicator that may still be coming up, and waits until it is.
  void add(ncclComm_t communicator, const std::string& what);
  // Destroys it (where the group was aborted it is gone) and forgets its calls.
  void remove(ncclComm_t communicator, const std::string& name) noexcept;

  // Throws CommError where the group was aborted.
  void throw_if_aborted(const std::string& what) const;
  // Waits until NCCL has taken a call in (it returned `result`); throws CommError if it did not.
  void settle(ncclResult_t result, ncclComm_t communicator, const std::string& what);
  // From now on the timeout runs for what was enqueued on the stream.
  void watch(const CollectiveCall& call, const std::string& name, cudaStream_t stream);

  void abort(const std::string& reason);

 private:
  using Time = std::chrono::steady_clock::time_point;
  // A call under way, in a ring of events: nothing is allocated for it.
  struct Pending {
    cudaEvent_t event = nullptr;
    Time deadline;
    CollectiveCall call;
    const std::string* name = nullptr;  // of a communicator of the group
  };
  static constexpr std::size_t kPendingMax = 256;

  void work();
  std::string trouble();  // why to abort; "" for no reason
  void abort_locked(const std::string& reason);

  const int ordinal_;
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_changed_;
  // Guarded by mutex_.
  std::vector<ncclComm_t> communicators_;
  std::vector<Pending> ring_;
  std::size_t first_ = 0;  // of the calls under way, counted on; at first_ % kPendingMax
  std::size_t next_ = 0;
  std::optional<std::string> reason_;
  bool stopping_ = false;
  // Last: it uses all of the above.
  std::thread watcher_;
};

}  // namespace terrace
