#include "runtime/step/rank_exchange.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

// Returns one of `parts` equal parts of a range.
Range part_of(const Range& whole, std::int32_t parts, std::int32_t number) {
  const std::size_t bytes = whole.size_bytes / static_cast<std::size_t>(parts);
  return {whole.buffer, whole.offset + bytes * static_cast<std::size_t>(number), bytes};
}

}  // namespace

Op data_op(OpKind kind, Account account, std::int32_t chunk, const Range& source,
           const Range& target) {
  Op op{.kind = kind, .lane = Lane::kCollective};
  op.chunk = chunk;
  op.account = account;
  op.reads = {as(Role::kSource, source)};
  op.writes = {as(Role::kTarget, target)};
  return op;
}

double sent_bytes(std::int32_t ranks, std::size_t whole_bytes) {
  return static_cast<double>(whole_bytes) * (ranks - 1) / ranks;
}

Range own_shard(const StepModel& model, const Range& whole) {
  return part_of(whole, model.zero.ranks, model.zero.rank);
}

void gather_shards(Mover& mover, const StepModel& model, const Range& own, const Range& whole,
                   std::int32_t chunk) {
  Op op = data_op(OpKind::kAllGather, Account::kParameters, chunk, own, whole);
  op.cost.bytes = sent_bytes(model.zero.ranks, whole.size_bytes);
  mover.add(std::move(op));
}

Range own_piece(const StepModel& model, const Range& home) {
  return part_of(home, model.zero.islands, model.zero.island());
}

void gather_between_islands(Mover& mover, const StepModel& model, const HomeGather& gather,
                            std::int32_t chunk) {
  Op op = data_op(OpKind::kAllGather, gather.account, chunk, gather.own, gather.home);
  op.lane = Lane::kInterIsland;
  op.cost.bytes = sent_bytes(model.zero.islands, gather.home.size_bytes);
  mover.add(std::move(op));
}

void gather_in_island(Mover& mover, const StepModel& model, const Range& home, const Range& whole,
                      std::int32_t chunk) {
  Op op = data_op(OpKind::kAllGather, Account::kParameters, chunk, home, whole);
  op.lane = Lane::kIsland;
  op.cost.bytes = sent_bytes(model.zero.island_ranks(), whole.size_bytes);
  mover.add(std::move(op));
}

Range reduce_to(Mover& mover, const StepModel& model, const Range& whole, const Range& part,
                std::int32_t chunk) {
  Op op = data_op(OpKind::kReduceScatter, Account::kGradients, chunk, whole, part);
  op.cost.bytes = sent_bytes(model.zero.ranks, whole.size_bytes);
  mover.add(std::move(op));
  return part;
}

void reduce_in_place(Mover& mover, const StepModel& model, const Range& whole, std::int32_t chunk) {
  Op op = data_op(OpKind::kAllReduce, Account::kGradients, chunk, whole, whole);
  op.cost.bytes = 2 * sent_bytes(model.zero.ranks, whole.size_bytes);
  mover.add(std::move(op));
}

Op tensor_op(const StepModel& model, OpKind kind, const Range& source, const Range& target) {
  const auto ranks = static_cast<double>(model.tensor.ranks);
  Op op{.kind = kind, .lane = Lane::kTensor};
  op.account = Account::kActivations;
  op.reads = {as(Role::kSource, source)};
  op.writes = {as(Role::kTarget, target)};
  const double whole = static_cast<double>(std::max(source.size_bytes, target.size_bytes));
  op.cost.bytes = whole * (ranks - 1) / ranks * (kind == OpKind::kAllReduce ? 2 : 1);
  return op;
}

void reduce_summed(Mover& mover, const StepModel& model, std::int32_t group, std::int64_t chunk,
                   const Range& whole) {
  const ElementSpan& summed = model.groups.at(static_cast<std::size_t>(group)).summed;
  const std::int64_t first = model.chunk_begin(group, chunk);
  const std::int64_t begin = std::max(summed.begin, first);
  const std::int64_t end = std::min(summed.end, first + model.chunk_size(group, chunk));
  if (begin >= end) return;
  const Range part{whole.buffer,
                   whole.offset + static_cast<std::size_t>(begin - first) * sizeof(float),
                   static_cast<std::size_t>(end - begin) * sizeof(float)};
  Op op{.kind = OpKind::kAllReduce, .lane = Lane::kTensor};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, part)};
  op.writes = {as(Role::kTarget, part)};
  op.cost.bytes =
      2.0 * static_cast<double>(part.size_bytes) * (model.tensor.ranks - 1) / model.tensor.ranks;
  mover.add(std::move(op));
}

Op message_op(const Task& task, const Range& range, Account account) {
  Op op{.kind = task.kind,
        .message = task.message,
        .lane = lane_of(task.kind, task.message),
        .account = account};
  if (task.kind == OpKind::kSend) {
    op.reads = {as(Role::kSource, range)};
    op.cost.bytes = static_cast<double>(range.size_bytes);
  } else {
    op.writes = {as(Role::kTarget, range)};
  }
  return op;
}

}  // namespace terrace
