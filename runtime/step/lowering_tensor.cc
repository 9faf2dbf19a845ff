#include <fmt/format.h>

#include <algorithm>

#include "runtime/step/lowering.h"

// Units that tensor-parallel ranks share: each stage becomes the phases of its unit, and between
// them what the ranks exchange, on a lane of its own. All ranks compile the same list.
namespace terrace {
namespace {

void copy_accesses(const Op& from, Role role, Op& to) {
  const auto copy = [role](const std::vector<Access>& source, std::vector<Access>& target) {
    std::ranges::copy_if(source, std::back_inserter(target),
                         [role](const Access& access) { return access.role == role; });
  };
  copy(from.reads, to.reads);
  copy(from.writes, to.writes);
}

}  // namespace

Op Lowering::phase_op(const Stage& stage, UnitPhase phase, const Range& parameters) {
  Op op = compute_op(stage);
  op.phase = phase;
  op.reads.push_back(as(Role::kParameters, parameters));
  return op;
}

Range Lowering::exchange_buffer(const char* what, const Stage& stage, std::size_t size_bytes) {
  const BufferId buffer =
      draft_.add_buffer(fmt::format("{}[{}] mb {}", what, stage.unit, stage.micro_batch),
                        size_bytes, compute_, Account::kActivations, Life::kTransient);
  return {buffer, 0, size_bytes};
}

void Lowering::tensor_op(OpKind kind, const Stage& stage, const Range& source,
                         const Range& target) {
  const auto ranks = static_cast<double>(model_.tensor.ranks);
  Op op{.kind = kind, .lane = Lane::kTensor};
  op.account = Account::kActivations;
  op.reads = {as(Role::kSource, source)};
  op.writes = {as(Role::kTarget, target)};
  const double whole = static_cast<double>(std::max(source.size_bytes, target.size_bytes));
  op.cost.bytes = whole * (ranks - 1) / ranks * (kind == OpKind::kAllReduce ? 2 : 1);
  main_op(std::move(op), stage);
}

Range Lowering::gather_rows(const Stage& stage, const Range& own) {
  if (!model_.tensor.shares_rows) return own;
  const Range all = exchange_buffer("gathered", stage, model_.tensor.rows_bytes);
  tensor_op(OpKind::kAllGather, stage, own, all);
  return all;
}

Range Lowering::reduce_rows(const Stage& stage, const Range& partial) {
  if (!model_.tensor.shares_rows) {
    tensor_op(OpKind::kAllReduce, stage, partial, partial);
    return partial;
  }
  const Range own = exchange_buffer("reduced", stage, model_.hidden_bytes);
  tensor_op(OpKind::kReduceScatter, stage, partial, own);
  return own;
}

void Lowering::add_normed(Op& op, const Stage& stage, const Range& saved, std::size_t offset) {
  if (!model_.tensor.shares_rows) return;
  const Range own{saved.buffer, saved.offset + offset, model_.hidden_bytes};
  op.reads.push_back(as(Role::kGathered, gather_rows(stage, own)));
}

void Lowering::shared_forward(const Stage& stage) {
  if (stage.unit == 0) {
    shared_embedding(stage);
    return settle_forward(stage);
  }
  const bool again = stage.kind == OpKind::kRecompute;
  const TensorSharing& tensor = model_.tensor;
  const UnitModel& unit = model_.units.at(stage.unit);
  const Range parameters = parameters_for(stage.unit);
  const Access below = as(Role::kHidden, hidden_for(stage.unit - 1, stage.micro_batch));
  saved(stage.unit, stage.micro_batch).memory = activation_buffer("saved", stage);
  const Range kept = draft_.whole(saved(stage.unit, stage.micro_batch).memory);

  Op norm1 = phase_op(stage, UnitPhase::kNorm1, parameters);
  norm1.reads.push_back(below);
  norm1.writes.push_back(as(Role::kSaved, kept));
  main_op(std::move(norm1), stage);

  const auto product = [&](UnitPhase phase, std::size_t normed, double flops, bool is_wanted) {
    Op op = phase_op(stage, phase, parameters);
    add_normed(op, stage, kept, normed);
    op.reads.push_back(as(Role::kSaved, kept));
    op.writes.push_back(as(Role::kSaved, kept));
    op.cost.flops = flops;
    Range partial;
    if (is_wanted) partial = exchange_buffer("partial", stage, tensor.rows_bytes);
    if (is_wanted) op.writes.push_back(as(Role::kPartial, partial));
    main_op(std::move(op), stage);
    return is_wanted ? reduce_rows(stage, partial) : partial;
  };
  const Range attended =
      product(UnitPhase::kAttention, tensor.normed1_offset, unit.attention_flops, true);
  Op norm2 = phase_op(stage, UnitPhase::kNorm2, parameters);
  norm2.reads.insert(norm2.reads.end(),
                     {below, as(Role::kReduced, attended), as(Role::kSaved, kept)});
  norm2.writes.push_back(as(Role::kSaved, kept));
  main_op(std::move(norm2), stage);

  const Range fed = product(UnitPhase::kMlp, tensor.normed2_offset,
                            unit.forward_flops - unit.attention_flops, !again);
  if (!again) {
    Op residual = phase_op(stage, UnitPhase::kResidual, parameters);
    hidden(stage.unit, stage.micro_batch).memory = activation_buffer("hidden", stage);
    residual.reads.insert(residual.reads.end(), {as(Role::kReduced, fed), as(Role::kSaved, kept)});
    residual.writes.push_back(
        as(Role::kHiddenOut, draft_.whole(hidden(stage.unit, stage.micro_batch).memory)));
    main_op(std::move(residual), stage);
  }
  settle_forward(stage);
}

void Lowering::shared_embedding(const Stage& stage) {
  const Range parameters = parameters_for(0);
  BufferId& out = hidden(0, stage.micro_batch).memory;
  out = activation_buffer("hidden", stage);
  const bool shares_rows = model_.tensor.shares_rows;
  const Range all = draft_.whole(out);
  const Range partial =
      shares_rows ? exchange_buffer("partial", stage, model_.tensor.rows_bytes) : all;
  Op lookup = phase_op(stage, UnitPhase::kLookup, parameters);
  lookup.reads.push_back(as(Role::kTokens, tokens_of(stage.micro_batch)));
  lookup.writes.push_back(as(Role::kPartial, partial));
  lookup.cost.flops = model_.units.front().forward_flops;
  main_op(std::move(lookup), stage);
  if (shares_rows) {
    tensor_op(OpKind::kReduceScatter, stage, partial, all);
  } else {
    tensor_op(OpKind::kAllReduce, stage, own_rows(out), own_rows(out));
  }
  if (!model_.tensor.has_positions) return;
  Op positions = phase_op(stage, UnitPhase::kPositions, parameters);
  positions.reads.push_back(as(Role::kHiddenOut, all));
  positions.writes.push_back(as(Role::kHiddenOut, all));
  main_op(std::move(positions), stage);
}

void Lowering::shared_head(const Stage& stage) {
  const TensorSharing& tensor = model_.tensor;
  const double flops = model_.units.at(stage.unit).backward_flops;
  const Range parameters = parameters_for(stage.unit);
  const Range tied = model_.tied ? parameters_for(0) : Range{};
  const Range kept = exchange_buffer("head saved", stage, tensor.head_saved_bytes);
  Op norm = phase_op(stage, UnitPhase::kHeadNorm, parameters);
  norm.reads.push_back(as(Role::kHidden, hidden_for(stage.unit - 1, stage.micro_batch)));
  norm.writes.push_back(as(Role::kSaved, kept));
  main_op(std::move(norm), stage);

  Op sums = phase_op(stage, UnitPhase::kHeadSums, parameters);
  if (model_.tied) sums.reads.push_back(as(Role::kTiedParameters, tied));
  add_normed(sums, stage, kept, 0);
  if (!tensor.shares_rows) sums.reads.push_back(as(Role::kSaved, kept));
  sums.reads.push_back(as(Role::kTokens, tokens_of(stage.micro_batch)));
  Op loss = sums;
  loss.phase = UnitPhase::kHeadLoss;
  const Range own = exchange_buffer("row sums", stage, tensor.row_sums_bytes);
  const Range all = exchange_buffer("all row sums", stage,
                                    static_cast<std::size_t>(tensor.ranks) * tensor.row_sums_bytes);
  sums.writes.push_back(as(Role::kRowSums, own));
  sums.cost.flops = flops / 3;
  main_op(std::move(sums), stage);
  tensor_op(OpKind::kAllGather, stage, own, all);

  loss.reads.push_back(as(Role::kAllRowSums, all));
  loss.writes.push_back(Access{Role::kLosses, shared_.losses,
                               sizeof(double) * static_cast<std::size_t>(stage.micro_batch),
                               sizeof(double)});
  if (policy_.has_backward) {
    loss.cost.flops = flops;
    shared_head_backward(stage, std::move(loss), parameters, kept);
  } else {
    main_op(std::move(loss), stage);
  }
  settle_head(stage);
}

void Lowering::shared_head_backward(const Stage& stage, Op loss, const Range& parameters,
                                    const Range& kept) {
  const std::int32_t below = stage.unit - 1;
  const Range partial = exchange_buffer("partial", stage, model_.tensor.rows_bytes);
  loss.writes.push_back(as(Role::kPartial, partial));
  add_gradient(loss, Role::kGradient, stage.unit, stage.micro_batch);
  if (model_.tied) add_gradient(loss, Role::kTiedGradient, 0, stage.micro_batch);
  add_loss_scale(loss);
  Op norm = phase_op(stage, UnitPhase::kHeadNormBackward, parameters);
  copy_accesses(loss, Role::kGradient, norm);
  norm.reads.push_back(as(Role::kSaved, kept));
  main_op(std::move(loss), stage);
  norm.reads.push_back(as(Role::kReduced, reduce_rows(stage, partial)));
  norm.reads.push_back(as(Role::kHidden, hidden_for(below, stage.micro_batch)));
  hidden_gradient(below, stage.micro_batch) = activation_buffer("hidden grad", stage, below);
  norm.writes.push_back(
      as(Role::kHiddenGradientOut, draft_.whole(hidden_gradient(below, stage.micro_batch))));
  main_op(std::move(norm), stage);
}

void Lowering::shared_backward(const Stage& stage) {
  const TensorSharing& tensor = model_.tensor;
  const UnitModel& unit = model_.units.at(stage.unit);
  const Range parameters = parameters_for(stage.unit);
  const Range below = hidden_for(stage.unit - 1, stage.micro_batch);
  const Range kept = brought_back(saved(stage.unit, stage.micro_batch), stage);
  Op gradients;
  add_gradient(gradients, Role::kGradient, stage.unit, stage.micro_batch);
  const auto op_of = [&](UnitPhase phase) {
    Op op = phase_op(stage, phase, parameters);
    op.reads.push_back(as(Role::kSaved, kept));
    copy_accesses(gradients, Role::kGradient, op);
    return op;
  };
  const auto product = [&](UnitPhase phase, const Range& gradient, std::size_t normed,
                           double flops) {
    Op op = op_of(phase);
    const bool gathers = tensor.shares_rows;
    op.reads.push_back(
        as(Role::kHiddenGradient,
           gathers ? gather_rows(stage, {gradient.buffer, 0, model_.hidden_bytes}) : gradient));
    add_normed(op, stage, kept, normed);
    const Range partial = exchange_buffer("partial", stage, tensor.rows_bytes);
    op.writes.push_back(as(Role::kPartial, partial));
    op.cost.flops = flops;
    main_op(std::move(op), stage);
    return reduce_rows(stage, partial);
  };
  const auto norm = [&](UnitPhase phase, const Range& reduced, const Range& residual,
                        const Range& out) {
    Op op = op_of(phase);
    if (phase == UnitPhase::kNorm1) op.reads.push_back(as(Role::kHidden, below));
    op.reads.push_back(as(Role::kReduced, reduced));
    op.reads.push_back(as(Role::kHiddenGradient, residual));
    op.writes.push_back(as(Role::kHiddenGradientOut, out));
    main_op(std::move(op), stage);
  };
  const Range above = draft_.whole(hidden_gradient(stage.unit, stage.micro_batch));
  const double attention_share = unit.attention_flops / unit.forward_flops;
  const double attention_flops = unit.backward_flops * attention_share;
  const Range fed =
      product(UnitPhase::kMlp, above, tensor.normed2_offset, unit.backward_flops - attention_flops);
  const Range middle = exchange_buffer("middle grad", stage, model_.hidden_bytes);
  norm(UnitPhase::kNorm2, fed, above, middle);
  const Range attended =
      product(UnitPhase::kAttention, middle, tensor.normed1_offset, attention_flops);
  BufferId& out = hidden_gradient(stage.unit - 1, stage.micro_batch);
  out = activation_buffer("hidden grad", stage, stage.unit - 1);
  norm(UnitPhase::kNorm1, attended, middle, draft_.whole(out));
  settle_backward(stage);
}

void Lowering::reduce_norms(Mover& mover, std::int32_t unit, std::int64_t chunk,
                            const Range& whole) {
  if (!model_.tensor.shares_rows) return;
  const ElementSpan& norms = model_.units.at(unit).norms;
  const std::int64_t first = chunk * model_.chunk_elements;
  const std::int64_t begin = std::max(norms.begin, first);
  const std::int64_t end = std::min(norms.end, first + model_.chunk_size(unit, chunk));
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
