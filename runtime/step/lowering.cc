#include "runtime/step/lowering.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

// About as many ops, and buffers, come of a stage: room for them is taken at once.
constexpr std::size_t kOpsPerStage = 4;
constexpr std::size_t kAccessesPerStage = 16;

Draft empty_draft(Tier compute, bool has_names) {
  Draft draft;
  draft.compute_tier = compute;
  draft.has_names = has_names;
  return draft;
}

}  // namespace

Lowering::Lowering(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages, bool has_names)
    : model_(model),
      policy_(policy),
      stages_(stages),
      compute_(policy.compute_tier()),
      draft_(empty_draft(compute_, has_names)),
      shared_(add_shared_buffers(draft_, model, policy)),
      parameters_(draft_, model, policy, StateClass::kParameters),
      uses_(parameter_uses(model, stages)),
      gradient_stages_(model.unit_count()),
      instances_(model.unit_count()),
      updated_on_host_(model.unit_count()),
      hidden_(places(model, stages) * policy.micro_batches),
      hidden_gradient_(hidden_.size(), kNoBuffer),
      saved_(hidden_.size()),
      gradient_(model.unit_count(), kNoBuffer),
      sum_(model.unit_count(), kNoBuffer),
      finished_at_(model.unit_count(), -1),
      updated_at_(model.unit_count(), -1) {
  draft_.ops.reserve(kOpsPerStage * stages.size());
  draft_.accesses.reserve(kAccessesPerStage * stages.size());
  draft_.buffers.reserve(kOpsPerStage * stages.size());
  if (policy.has_backward) {
    for (const StateClassInfo& info : kStateClasses) {
      if (info.use != StateUse::kUpdate) continue;
      update_states_.emplace_back(draft_, model, policy, info.state);
    }
    gradients_.emplace(draft_, model, policy, StateClass::kGradients);
    for (std::int32_t u = 0; u <= model.head(); ++u)
      first_partials_.push_back(model.first_partial(u));
  }
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(stages.size()); ++s) {
    note(stages[s], s);
  }
}

void Lowering::note(const Stage& stage, std::int32_t number) {
  stage_of_[{stage.kind, stage.in_chain(), stage.micro_batch}] = number;
  const bool adds = stage.kind == OpKind::kBackward || stage.kind == OpKind::kHead;
  if (adds) {
    GradientStages& of_unit = gradient_stages_.at(stage.unit);
    if (of_unit.first < 0) of_unit.first = number;
    of_unit.last = number;
  }
  const bool computes = adds || stage.kind == OpKind::kForward;
  if (computes && UnitModel::writes(steps_of(stage), Role::kLosses)) last_loss_ = number;
}

std::size_t Lowering::places(const StepModel& model, const std::vector<Stage>& stages) {
  std::size_t count = model.unit_count();
  for (const Stage& stage : stages) {
    count = std::max(count, static_cast<std::size_t>(stage.in_chain() + 1));
  }
  return count;
}

const std::vector<UnitStep>& Lowering::steps_of(const Stage& stage) const {
  const UnitModel& unit = model_.units.at(stage.unit);
  if (stage.kind == OpKind::kRecompute) return unit.recompute;
  const bool is_backward =
      stage.kind == OpKind::kBackward || (stage.kind == OpKind::kHead && policy_.has_backward);
  return is_backward ? unit.backward : unit.forward;
}

Draft Lowering::run() {
  for (stage_ = 0; stage_ < static_cast<std::int32_t>(stages_.size()); ++stage_) {
    lower(stages_[stage_]);
  }
  return std::move(draft_);
}

void Lowering::lower(const Stage& stage) {
  switch (stage.kind) {
    case OpKind::kInput:
      return input();
    case OpKind::kForward:
    case OpKind::kRecompute:
      return forward(stage);
    case OpKind::kHead:
      return head(stage);
    case OpKind::kBackward:
      return backward(stage);
    case OpKind::kEmbeddingBackward:
      return embedding_backward();
    case OpKind::kSend:
    case OpKind::kReceive:
      return pass_message(stage);
    case OpKind::kStepScalars:
      return step_scalars();
    case OpKind::kNormFinish:
      return norm_finish();
    case OpKind::kUpdate:
      return update(stage);
    default:
      TERRACE_CHECK(false);
  }
}

void Lowering::input() {
  Op op{.kind = OpKind::kInput, .lane = policy_.unified ? Lane::kCompute : Lane::kUpload};
  op.writes = {as(Role::kTokens, draft_.whole(shared_.tokens))};
  op.account = Account::kWorkspace;
  if (!policy_.unified) op.cost.bytes = static_cast<double>(op.writes[0].size_bytes);
  main_op(std::move(op), Stage{});
}

void Lowering::forward(const Stage& stage) {
  unit_pass(stage, steps_of(stage));
  settle_forward(stage);
}

void Lowering::settle_forward(const Stage& stage) {
  if (stage.kind == OpKind::kRecompute) return;
  if (stage_ == last_loss_) losses_to_host();
  const std::int32_t place = stage.in_chain();
  if (!needed_again(stage).has_value()) return release_input(stage);
  if (needs_input_again(stage.unit)) {
    send_away(hidden(place - 1, stage.micro_batch),
              {BufferKind::kHiddenAway, place - 1, stage.micro_batch}, stage);
  }
  if (!policy_.homes.at(stage.unit).recompute && UnitModel::writes(steps_of(stage), Role::kSaved) &&
      model_.units.at(stage.unit).saved_bytes != 0) {
    send_away(saved(place, stage.micro_batch), {BufferKind::kSavedAway, place, stage.micro_batch},
              stage);
  }
}

void Lowering::release_input(const Stage& stage) {
  const std::int32_t place = stage.in_chain();
  if (place > 0) release_slot(hidden_slots_, hidden(place - 1, stage.micro_batch).memory);
}

void Lowering::head(const Stage& stage) {
  unit_pass(stage, steps_of(stage));
  settle_head(stage);
}

void Lowering::add_loss_scale(Op& op) const {
  if (shared_.loss_scale == kNoBuffer) return;
  op.reads.push_back(as(Role::kLossScale, draft_.whole(shared_.loss_scale)));
}

void Lowering::settle_head(const Stage& stage) {
  release_input(stage);
  if (policy_.has_backward && model_.trains(stage.unit)) {
    settle_gradient(stage.unit, stage.micro_batch);
  }
  if (stage_ == last_loss_) losses_to_host();
}

void Lowering::losses_to_host() {
  if (policy_.unified) return;
  Mover mover = Mover::store(draft_, stage_, labels(Stage{}, Account::kWorkspace));
  mover.copy(draft_.whole(shared_.losses), draft_.whole(shared_.losses_host));
}

void Lowering::backward(const Stage& stage) {
  unit_pass(stage, steps_of(stage));
  settle_backward(stage);
}

void Lowering::settle_backward(const Stage& stage) {
  release_input(stage);
  release_slot(gradient_slots_, hidden_gradient(stage.in_chain(), stage.micro_batch));
  if (model_.trains(stage.unit)) settle_gradient(stage.unit, stage.micro_batch);
  if (stage_ == last_loss_) losses_to_host();
}

void Lowering::embedding_backward() {
  const Stage stage{.kind = OpKind::kEmbeddingBackward, .unit = 0};
  Op op = compute_op(stage);
  op.reads.push_back(as(Role::kTokens, draft_.whole(shared_.tokens)));
  for (std::int32_t m = 0; m < policy_.micro_batches; ++m) {
    op.reads.push_back(
        as(Role::kHiddenGradient, gather_rows(stage, own_rows(hidden_gradient(0, m)))));
  }
  const Range target = compute_gradient(0);
  if (model_.has_tied_gradient()) op.reads.push_back(as(Role::kGradient, target));
  op.writes.push_back(as(Role::kGradient, target));
  op.cost.flops = model_.units.front().backward_flops;
  main_op(std::move(op), stage);
  finish_gradient(0);
}

Op Lowering::compute_op(const Stage& stage) {
  Op op{.kind = stage.kind, .lane = Lane::kCompute, .use = stage.use};
  if (shared_.constants != kNoBuffer) {
    op.reads.push_back(as(Role::kConstants, draft_.whole(shared_.constants)));
  }
  if (shared_.workspace != kNoBuffer) {
    op.writes.push_back(as(Role::kWorkspace, draft_.whole(shared_.workspace)));
  }
  return op;
}

void Lowering::main_op(Op op, const Stage& stage) {
  op.unit = stage.unit;
  op.micro_batch = stage.micro_batch;
  op.chunk = stage.chunk;
  op.parts = stage.parts;
  op.message = stage.message;
  DraftOp draft_op;
  draft_op.op = std::move(op);
  draft_op.stage = stage_;
  draft_.add_op(std::move(draft_op));
}

Range Lowering::tokens_of(std::int32_t micro_batch) const {
  return {shared_.tokens, model_.tokens_bytes * static_cast<std::size_t>(micro_batch),
          model_.tokens_bytes};
}

}  // namespace terrace
