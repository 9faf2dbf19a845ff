#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "parallel/communicator.h"

namespace terrace::test {

// The kinds of calls that ranks have made, and on which communicators. Thread-safe.
class KindsOfCalls {
 public:
  void add(const CollectiveCall& call, const Communicator& communicator);
  // Returns entries such as "rank 1: all_reduce (sum) on 'data'".
  std::set<std::string> all() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> kinds_;  // guarded by mutex_
};

// Makes a communicator for the memory of fake GPUs. The ranks are threads, with a fake GPU each.
// Like NCCL, the communicator queues its calls on the stream and returns. On the stream they are
// calls of `threads`, a thread communicator, on the memory where it really is. So the bits are the
// same as with ranks of host memory. It refuses sums of bf16 and fp16 over more than two ranks, as
// NCCL cannot add them. Whatever aborts `threads` aborts this communicator too. The
// `failing_call`-th call of the rank over all its communicators, counted from 1, fails when the
// stream comes to it; 0: no call fails. The target of a failed call then holds NaNs, and the stream
// goes on. A caller of abort_reason() learns of the failure; the other ranks learn of it with this
// rank's next call, or after 100 ms. `kinds`, which may be null, must outlive the communicator.
std::unique_ptr<Communicator> make_fake_gpu_communicator(std::unique_ptr<Communicator> threads,
                                                         int failing_call, KindsOfCalls* kinds);

}  // namespace terrace::test
