#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "memory/device.h"
#include "memory/tensor.h"

// The seam to other ranks: collectives over a named group. Real: MPI (host memory), NCCL (device
// memory). The oracle of the tests: ranks as threads of one process. All pass tests/conformance.
namespace terrace {

enum class ReduceOp : std::uint8_t { kSum, kMax };

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kSplit
};

// One call as the group sees it: what must agree between ranks, and where the bytes are.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kU8;
  int peer = -1;             // root of a broadcast, receiver of a send, sender of a recv
  std::size_t elements = 0;  // of the whole: what all parts together have
  std::byte* target = nullptr;
  const std::byte* source = nullptr;

  std::size_t size_bytes() const { return elements * size_of(dtype); }
};

// "all_reduce (sum) of 12 fp32"
std::string describe(const CollectiveCall& call);

struct CommunicatorOptions {
  // How long a call waits for ranks that have not arrived, or have not done their part of it
  // (--collective-timeout).
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
};

// One rank's end of a group. Every rank of the group makes the same calls in the same order, from
// one thread at a time; a call that all have begun is a *node*, and the order of nodes over all
// communicators must have no cycle (the step program is checked for that). Different communicators
// are independent: they may be used by different threads at the same time.
//
// Streams. Communicators of host memory (self, threads, MPI) ignore `stream`, block the calling
// thread, which is that of the lane, until the call is complete, and return when the rank's own
// buffers may be read and written again. Communicators of device memory (NCCL) enqueue on `stream`
// and return; a call that is ended later leaves the stream going on, and abort_reason() tells.
//
// Numerics. Sums and maxima are taken in rank order, ((0 + 1) + 2) + ..., element by element,
// wherever the ranks run (NCCL: in NCCL's own order). bf16 and fp16 are added in fp32 over all
// ranks and rounded once, to nearest even. So all_reduce has the bits of reduce_scatter followed by
// all_gather, whatever the sizes. max is NaN where a rank has NaN. Sums and maxima are for fp32,
// bf16, fp16, fp64 and i32 (which wraps); everything else moves any dtype.
//
// Errors. A call throws CommError when the timeout passes before all ranks have arrived (naming the
// communicator, the call and the missing ranks), when a rank has left (its communicator is gone,
// its process has died), when ranks make different calls, and when someone called abort(). Any of
// these aborts all communicators that were made together, by split() too: every rank gets the
// error, waiting or not, and no call succeeds after. Sizes and dtypes that this rank alone can see
// to be wrong are checks. A call that threw leaves its target undefined, and no other rank writes
// this rank's buffers any more; another process may read them yet, and its call fails.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }

  // In place; any number of elements. With none it is a barrier.
  void all_reduce(const TensorView& data, ReduceOp op, NativeStream stream);
  // Part r of the result, 1/size of the source, to rank r. The target may be part r of the source.
  void reduce_scatter(const TensorView& target, const TensorView& source, ReduceOp op,
                      NativeStream stream);
  // The sources of all ranks, in rank order. The source may be part r of the target.
  void all_gather(const TensorView& target, const TensorView& source, NativeStream stream);
  void broadcast(const TensorView& data, int root, NativeStream stream);
  // Part r of the source goes to rank r; part q of the target comes from rank q. They do not
  // overlap.
  void all_to_all(const TensorView& target, const TensorView& source, NativeStream stream);
  // A pair is one node: send() may wait until the receiver has arrived. Equal dtype and size.
  void send(const TensorView& data, int to, NativeStream stream);
  void recv(const TensorView& data, int from, NativeStream stream);

  // A group of the ranks that give the same color (0 or more), ordered by (key, rank), called
  // `name`. All ranks of this communicator call it. Not during a step: it allocates.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name);

  // Ends every call, now and later, of all ranks and of all communicators made together with this
  // one: they throw CommError with `reason`. Any thread, at any time; never blocks on other ranks.
  virtual void abort(const std::string& reason) = 0;

  // Why they were aborted; none while they were not. Looks for news from other ranks. Any thread,
  // at any time; never blocks on other ranks.
  virtual std::optional<std::string> abort_reason() = 0;
  // Throws CommError where there is one. Where calls enqueue, what has returned may end so.
  void throw_if_aborted();

  // Bytes of payload that this rank has sent by completed calls: (n-1)/n of it for reduce_scatter,
  // all_gather and all_to_all, both for all_reduce, n-1 times for the root of a broadcast. Any
  // thread.
  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 protected:
  Communicator(std::string name, int rank, int size);

 private:
  // Carries out a call that is sound by itself.
  virtual void run(const CollectiveCall& call, NativeStream stream) = 0;
  virtual std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) = 0;
  void run_and_count(const CollectiveCall& call, NativeStream stream);

  const std::string name_;
  const int rank_;
  const int size_;
  std::atomic<std::uint64_t> bytes_sent_{0};
};

// Elements [begin, begin + count) of `elements` that rank r reduces in an all_reduce: equal parts
// of whole cache lines, the last ones shorter or empty.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};
ElementRange all_reduce_part(std::size_t elements, int rank, int size);

// What `rank` of `size` sends in a call, in bytes.
std::uint64_t bytes_sent_by(const CollectiveCall& call, int rank, int size);

// Makes a rank's call on another communicator of the same size. Not of a split.
void repeat_call(const CollectiveCall& call, Communicator& on, NativeStream stream);

// What is different between two ranks' calls of one node: "" where they agree, else a sentence that
// names both.
std::string mismatch(const CollectiveCall& a, int rank_a, const CollectiveCall& b, int rank_b);

}  // namespace terrace
