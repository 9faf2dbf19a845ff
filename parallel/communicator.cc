#include "parallel/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kRecv:
      return "recv";
    case CollectiveKind::kSplit:
      return "split";
  }
  return "";
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

bool has_arithmetic(DType dtype) { return dtype != DType::kU8 && dtype != DType::kI16; }

CollectiveCall call_of(CollectiveKind kind, const TensorView& target, const TensorView& source,
                       const TensorView& whole) {
  TERRACE_CHECK(target.dtype == source.dtype);
  return {.kind = kind,
          .op = ReduceOp::kSum,
          .dtype = whole.dtype,
          .peer = -1,
          .elements = static_cast<std::size_t>(whole.elements()),
          .target = target.data,
          .source = source.data};
}

}  // namespace

std::string describe(const CollectiveCall& call) {
  if (call.kind == CollectiveKind::kSplit) return "split";
  std::string text(name_of(call.kind));
  if (reduces(call.kind)) text += call.op == ReduceOp::kSum ? " (sum)" : " (max)";
  text += fmt::format(" of {} {}", call.elements, name_of(call.dtype));
  if (call.kind == CollectiveKind::kSend) text += fmt::format(" to rank {}", call.peer);
  if (call.kind == CollectiveKind::kRecv || call.kind == CollectiveKind::kBroadcast) {
    text += fmt::format(" from rank {}", call.peer);
  }
  return text;
}

Communicator::Communicator(std::string name, int rank, int size)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      waited_for_s_(static_cast<std::size_t>(size)) {
  TERRACE_CHECK_LE(0, rank);
  TERRACE_CHECK_LT(rank, size);
}

std::vector<double> Communicator::waited_for_s() const {
  std::vector<double> seconds;
  for (const std::atomic<double>& one : waited_for_s_) {
    seconds.push_back(one.load(std::memory_order_relaxed));
  }
  return seconds;
}

void Communicator::count_wait(int last, double seconds) {
  waited_for_s_[static_cast<std::size_t>(last)].fetch_add(seconds, std::memory_order_relaxed);
}

void Communicator::run_and_count(const CollectiveCall& call, NativeStream stream) {
  run(call, stream);
  bytes_sent_.fetch_add(bytes_sent_by(call, rank_, size_), std::memory_order_relaxed);
}

void Communicator::all_reduce(const TensorView& data, ReduceOp op, NativeStream stream) {
  TERRACE_CHECK(has_arithmetic(data.dtype));
  CollectiveCall call = call_of(CollectiveKind::kAllReduce, data, data, data);
  call.op = op;
  run_and_count(call, stream);
}

void Communicator::reduce_scatter(const TensorView& target, const TensorView& source, ReduceOp op,
                                  NativeStream stream) {
  TERRACE_CHECK(has_arithmetic(source.dtype));
  TERRACE_CHECK_EQ(target.elements() * size_, source.elements());
  CollectiveCall call = call_of(CollectiveKind::kReduceScatter, target, source, source);
  call.op = op;
  run_and_count(call, stream);
}

void Communicator::all_gather(const TensorView& target, const TensorView& source,
                              NativeStream stream) {
  TERRACE_CHECK_EQ(source.elements() * size_, target.elements());
  run_and_count(call_of(CollectiveKind::kAllGather, target, source, target), stream);
}

void Communicator::broadcast(const TensorView& data, int root, NativeStream stream) {
  TERRACE_CHECK_LE(0, root);
  TERRACE_CHECK_LT(root, size_);
  CollectiveCall call = call_of(CollectiveKind::kBroadcast, data, data, data);
  call.peer = root;
  run_and_count(call, stream);
}

void Communicator::all_to_all(const TensorView& target, const TensorView& source,
                              NativeStream stream) {
  TERRACE_CHECK_EQ(source.elements(), target.elements());
  TERRACE_CHECK_EQ(source.elements() % size_, 0);
  run_and_count(call_of(CollectiveKind::kAllToAll, target, source, source), stream);
}

void Communicator::send(const TensorView& data, int to, NativeStream stream) {
  TERRACE_CHECK_LE(0, to);
  TERRACE_CHECK_LT(to, size_);
  TERRACE_CHECK_NE(to, rank_);
  CollectiveCall call = call_of(CollectiveKind::kSend, data, data, data);
  call.peer = to;
  run_and_count(call, stream);
}

void Communicator::recv(const TensorView& data, int from, NativeStream stream) {
  TERRACE_CHECK_LE(0, from);
  TERRACE_CHECK_LT(from, size_);
  TERRACE_CHECK_NE(from, rank_);
  CollectiveCall call = call_of(CollectiveKind::kRecv, data, data, data);
  call.peer = from;
  run_and_count(call, stream);
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, const std::string& name) {
  TERRACE_CHECK_LE(0, color);
  return run_split(color, key, name);
}

void Communicator::throw_if_aborted() {
  const std::optional<std::string> reason = abort_reason();
  if (!reason) return;
  throw CommError(fmt::format("communicator '{}' (rank {} of {}) was aborted: {}", name_, rank_,
                              size_, *reason),
                  "");
}

ElementRange all_reduce_part(std::size_t elements, int rank, int size) {
  constexpr std::size_t kLineElements = 64;  // whole lines even for the narrowest dtype
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t even = (elements + ranks - 1) / ranks;
  const std::size_t part = (even + kLineElements - 1) / kLineElements * kLineElements;
  const std::size_t begin = std::min(static_cast<std::size_t>(rank) * part, elements);
  return {begin, std::min(part, elements - begin)};
}

std::uint64_t bytes_sent_by(const CollectiveCall& call, int rank, int size) {
  const std::uint64_t whole = call.size_bytes();
  const auto ranks = static_cast<std::uint64_t>(size);
  switch (call.kind) {
    case CollectiveKind::kAllReduce: {
      const std::uint64_t own =
          all_reduce_part(call.elements, rank, size).count * size_of(call.dtype);
      return whole - own + own * (ranks - 1);
    }
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return whole / ranks * (ranks - 1);
    case CollectiveKind::kBroadcast:
      return rank == call.peer ? whole * (ranks - 1) : 0;
    case CollectiveKind::kSend:
      return whole;
    case CollectiveKind::kRecv:
    case CollectiveKind::kSplit:
      return 0;
  }
  return 0;
}

void repeat_call(const CollectiveCall& call, Communicator& on, NativeStream stream) {
  const auto of = [&call](const std::byte* data, std::size_t elements) {
    return view(const_cast<std::byte*>(data), call.dtype, static_cast<std::int64_t>(elements));
  };
  const std::size_t part = call.elements / static_cast<std::size_t>(on.size());
  const TensorView whole = of(call.target, call.elements);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return on.all_reduce(whole, call.op, stream);
    case CollectiveKind::kReduceScatter:
      return on.reduce_scatter(of(call.target, part), of(call.source, call.elements), call.op,
                               stream);
    case CollectiveKind::kAllGather:
      return on.all_gather(whole, of(call.source, part), stream);
    case CollectiveKind::kBroadcast:
      return on.broadcast(whole, call.peer, stream);
    case CollectiveKind::kAllToAll:
      return on.all_to_all(whole, of(call.source, call.elements), stream);
    case CollectiveKind::kSend:
      return on.send(whole, call.peer, stream);
    case CollectiveKind::kRecv:
      return on.recv(whole, call.peer, stream);
    case CollectiveKind::kSplit:
      break;
  }
  TERRACE_CHECK(false);
}

std::string mismatch(const CollectiveCall& a, int rank_a, const CollectiveCall& b, int rank_b) {
  const bool is_pair = a.kind == CollectiveKind::kSend && b.kind == CollectiveKind::kRecv;
  const bool same_kind = is_pair || (a.kind == b.kind && a.peer == b.peer);
  if (same_kind && a.op == b.op && a.dtype == b.dtype && a.elements == b.elements) return {};
  return fmt::format("ranks make different calls: rank {} calls {}, rank {} calls {}", rank_a,
                     describe(a), rank_b, describe(b));
}

}  // namespace terrace
