#include <algorithm>

#include "runtime/step/lowering.h"

// The exchange between tensor-parallel ranks, on its own lane. All ranks compile the same list.
namespace terrace {

void Lowering::tensor_op(OpKind kind, const Task& task, const Range& source, const Range& target) {
  const auto ranks = static_cast<double>(model_.tensor.ranks);
  Op op{.kind = kind, .lane = Lane::kTensor};
  op.account = Account::kActivations;
  op.reads = {as(Role::kSource, source)};
  op.writes = {as(Role::kTarget, target)};
  const double whole = static_cast<double>(std::max(source.size_bytes, target.size_bytes));
  op.cost.bytes = whole * (ranks - 1) / ranks * (kind == OpKind::kAllReduce ? 2 : 1);
  main_op(std::move(op), task);
}

Range Lowering::gather_rows(const Task& task, const Range& own) {
  if (!model_.tensor.shares_rows) return own;
  const BufferId all = draft_.add_buffer(
      draft_.name("gathered[{}] mb {}", task.unit, task.micro_batch), model_.tensor.rows_bytes,
      compute_, Account::kActivations, Life::kTransient);
  const Range rows{all, 0, model_.tensor.rows_bytes};
  tensor_op(OpKind::kAllGather, task, own, rows);
  return rows;
}

void Lowering::reduce_summed(Mover& mover, std::int32_t unit, std::int64_t chunk,
                             const Range& whole) {
  const ElementSpan& summed = model_.units.at(unit).summed;
  const std::int64_t first = model_.chunk_begin(unit, chunk);
  const std::int64_t begin = std::max(summed.begin, first);
  const std::int64_t end = std::min(summed.end, first + model_.chunk_size(unit, chunk));
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
      2.0 * static_cast<double>(part.size_bytes) * (model_.tensor.ranks - 1) / model_.tensor.ranks;
  mover.add(std::move(op));
}

}  // namespace terrace
