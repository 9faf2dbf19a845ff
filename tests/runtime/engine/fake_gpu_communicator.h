#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "parallel/communicator.h"

namespace terrace::test {

// Which kinds of calls ranks have made on which communicators. Thread-safe.
class KindsOfCalls {
 public:
  void add(const CollectiveCall& call, const Communicator& communicator);
  // "rank 1: all_reduce (sum) on 'data'"
  std::set<std::string> all() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> kinds_;  // guarded by mutex_
};

// A communicator of the memory of fake GPUs, which ranks as threads have one each of. As NCCL does,
// it queues its calls on the stream and returns; on the stream they are calls of `threads`, a
// thread communicator, on the memory where it really is. So the bits are those of ranks of host
// memory; sums of bf16 and fp16 over more than two ranks it does not take, as NCCL cannot add them.
// What aborts that one aborts this one. Of all calls of the rank the
// `failing_call`-th, counted from 1, fails when the stream comes to it; 0: none. What is in its
// target then are no numbers, and the stream goes on. Who asks for abort_reason() knows; the others
// hear of it with this rank's next call, or after 100 ms. `kinds`, which may be null, outlives it.
std::unique_ptr<Communicator> make_fake_gpu_communicator(std::unique_ptr<Communicator> threads,
                                                         int failing_call, KindsOfCalls* kinds);

}  // namespace terrace::test
