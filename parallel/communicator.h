#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "memory/device.h"
#include "memory/tensor.h"

// The interface to other ranks: collectives over a named group. Ranks communicate as threads of one
// process, through MPI or sockets (host memory), or through NCCL (device memory). The threads are
// the reference that tests compare with. All of them pass tests/conformance.
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

// One call as the group sees it: the values that ranks must agree on, and where the bytes are.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kU8;
  int peer = -1;             // root of a broadcast, receiver of a send, sender of a recv
  std::size_t elements = 0;  // of the whole: the sum over all parts
  std::byte* target = nullptr;
  const std::byte* source = nullptr;

  std::size_t size_bytes() const { return elements * size_of(dtype); }
};

// Returns a text such as "all_reduce (sum) of 12 fp32".
std::string describe(const CollectiveCall& call);

// Whether data crosses between hosts hierarchically: gathered data once for all ranks of a host,
// and sums from host to host. Otherwise every rank sends to every other. kAuto: gathered data
// always, and sums where this carries fewer bytes. No bit depends on it.
enum class HierarchicalUse : std::uint8_t { kAuto, kOn, kOff };

struct CommunicatorOptions {
  // The time that a call waits for ranks that have not arrived, or have not done their part of it
  // (--collective-timeout).
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
  // For communicators of several hosts other than NCCL's; the same on all ranks
  // (--hierarchical-collectives).
  HierarchicalUse hierarchical = HierarchicalUse::kAuto;
};

// One rank's end of a group. Every rank of the group makes the same calls in the same order, from
// one thread at a time. A call that all ranks have begun is a *node*. The order of nodes over all
// communicators must have no cycle (the step program is checked for that). Different communicators
// are independent: different threads may use them at the same time.
//
// Streams. Communicators of host memory (self, threads, MPI, sockets) ignore `stream`. They
// block the calling thread, which is the lane's thread, until the call is complete, and return when
// the rank's own buffers may be read and written again. Communicators of device memory (NCCL)
// enqueue on `stream` and return. If such a call is ended later, the stream still goes on;
// abort_reason() reports the end.
//
// Numerics. Sums and maxima are taken in rank order, ((0 + 1) + 2) + ..., element by element,
// wherever the ranks run (NCCL: in NCCL's own order). bf16 and fp16 are added in fp32 over all
// ranks and rounded once, to nearest even. So all_reduce has the bits of reduce_scatter followed by
// all_gather, whatever the sizes. The maximum is NaN if any rank has NaN. Sums and maxima work on
// fp32, bf16, fp16, fp64 and i32 (which wraps); all other calls move any dtype.
//
// Errors. A call throws CommError when the timeout passes before all ranks have arrived (naming the
// communicator, the call and the missing ranks), when a rank has left (its communicator is gone,
// its process has died), when ranks make different calls, and when someone called abort(). Each of
// these aborts all communicators that were made together, and all that were split from them: every
// rank gets the error, waiting or not, and no later call succeeds. Wrong sizes and dtypes that this
// rank can see by itself fail a check. After a call has thrown, its target is undefined and no
// rank of this host writes this rank's buffers any more; another process may still read them, but
// its call fails. The implementation says what messages to other hosts may do.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }

  // Works in place, on any number of elements. With no elements it is a barrier.
  void all_reduce(const TensorView& data, ReduceOp op, NativeStream stream);
  // Gives part r of the result, 1/size of the source, to rank r. The target may be part r of the
  // source.
  void reduce_scatter(const TensorView& target, const TensorView& source, ReduceOp op,
                      NativeStream stream);
  // Collects the sources of all ranks, in rank order. The source may be part r of the target.
  void all_gather(const TensorView& target, const TensorView& source, NativeStream stream);
  void broadcast(const TensorView& data, int root, NativeStream stream);
  // Sends part r of the source to rank r, and receives part q of the target from rank q. Source and
  // target do not overlap.
  void all_to_all(const TensorView& target, const TensorView& source, NativeStream stream);
  // A send and its recv are one node: send() may wait until the receiver has arrived. Both have the
  // same dtype and size.
  void send(const TensorView& data, int to, NativeStream stream);
  void recv(const TensorView& data, int from, NativeStream stream);

  // Returns a group called `name` of the ranks that give the same color (0 or more), ordered by
  // (key, rank). All ranks of this communicator call it. It allocates, so it must not be called
  // during a step.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name);

  // Ends every call, now and later, of all ranks and of all communicators made together with this
  // one: the calls throw CommError with `reason`. May be called by any thread, at any time; never
  // blocks on other ranks.
  virtual void abort(const std::string& reason) = 0;

  // Returns why the communicators were aborted, or nothing if they were not. Also looks for news
  // from other ranks. May be called by any thread, at any time; never blocks on other ranks.
  virtual std::optional<std::string> abort_reason() = 0;
  // Throws CommError if there is a reason. Where calls only enqueue, a call that has returned may
  // still fail this way.
  void throw_if_aborted();

  // Returns the bytes of payload that this rank would send in its completed calls if every rank
  // sent to every other: (n-1)/n of the data for reduce_scatter, all_gather and all_to_all, the sum
  // of the first two for all_reduce, and n-1 times the data for the root of a broadcast. Any
  // thread.
  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  // Returns how long this rank has waited until all ranks had begun a collective, in seconds, by
  // the rank that was the last to begin it. A send and its recv do not count. Only communicators of
  // threads and of MPI know it; the others return zeros. Any thread.
  std::vector<double> waited_for_s() const;

 protected:
  Communicator(std::string name, int rank, int size);
  // Counts a wait for `last`, the rank that was the last to begin a collective.
  void count_wait(int last, double seconds);

 private:
  // Carries out a call whose own arguments have been checked.
  virtual void run(const CollectiveCall& call, NativeStream stream) = 0;
  virtual std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) = 0;
  void run_and_count(const CollectiveCall& call, NativeStream stream);

  const std::string name_;
  const int rank_;
  const int size_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::vector<std::atomic<double>> waited_for_s_;  // by rank
};

// The elements [begin, begin + count) that rank r reduces in an all_reduce of `elements`. The parts
// are equal and consist of whole cache lines; the last ones are shorter or empty.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};
ElementRange all_reduce_part(std::size_t elements, int rank, int size);

// Returns the bytes that `rank` of `size` sends in a call.
std::uint64_t bytes_sent_by(const CollectiveCall& call, int rank, int size);

// Makes a rank's call on another communicator of the same size. The call must not be a split.
void repeat_call(const CollectiveCall& call, Communicator& on, NativeStream stream);

// Returns a sentence that says how two ranks' calls of one node differ and names both, or "" if
// they agree.
std::string mismatch(const CollectiveCall& a, int rank_a, const CollectiveCall& b, int rank_b);

}  // namespace terrace
