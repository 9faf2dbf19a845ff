#include "runtime/step/schedule.h"

#include <algorithm>

namespace terrace {
namespace {

class Scheduler {
 public:
  Scheduler(const StepModel& model, const StepPolicy& policy)
      : model_(model), policy_(policy), end_(model.head() + 1) {}

  std::vector<Stage> run() {
    stages_.push_back({.kind = OpKind::kInput});
    if (model_.pipeline.stages > 1) {
      pipelined();
    } else if (policy_.order == MicroBatchOrder::kLayerMajor) {
      layer_major();
    } else {
      micro_batch_major();
    }
    if (policy_.has_backward) {
      if (model_.has_unit(0)) stages_.push_back({.kind = OpKind::kEmbeddingBackward, .unit = 0});
      stages_.push_back({.kind = OpKind::kNormFinish});
    }
    return std::move(stages_);
  }

 private:
  void layer_major() {
    for (std::int32_t u = 0; u < model_.head(); ++u) {
      updates_before_forward(u);
      for (std::int32_t m = 0; m < policy_.micro_batches; ++m) emit(OpKind::kForward, u, m);
    }
    step_scalars();
    for (std::int32_t m = 0; m < policy_.micro_batches; ++m) {
      emit(OpKind::kHead, model_.head(), m);
    }
    if (!policy_.has_backward) return;
    update_at_once(model_.head());
    for (std::int32_t u = model_.head() - 1; u >= 1; --u) {
      for (std::int32_t m = 0; m < policy_.micro_batches; ++m) emit(OpKind::kBackward, u, m);
      update_at_once(u);
    }
  }

  void micro_batch_major() {
    for (std::int32_t m = 0; m < policy_.micro_batches; ++m) {
      for (std::int32_t u = 0; u < model_.head(); ++u) {
        if (m == 0) updates_before_forward(u);
        emit(OpKind::kForward, u, m);
      }
      const bool last = m == policy_.micro_batches - 1;
      if (last) step_scalars();
      emit(OpKind::kHead, model_.head(), m);
      if (!policy_.has_backward) continue;
      if (last) update_at_once(model_.head());
      for (std::int32_t u = model_.head() - 1; u >= 1; --u) {
        emit(OpKind::kBackward, u, m);
        if (last) update_at_once(u);
      }
    }
  }

  // The tied embedding's parameters come first and its gradient goes last, on both sides: messages
  // of one direction have one order.
  void pipelined() {
    const PipelineCut& cut = model_.pipeline;
    begin_ = cut.first_units.at(static_cast<std::size_t>(cut.stage));
    end_ = cut.first_units.at(static_cast<std::size_t>(cut.stage) + 1);
    next_update_ = begin_;
    if (policy_.has_backward && model_.has_copy_of_embedding()) {
      for_chunks(0, OpKind::kReceiveUpdated, true);
    }
    const PipelineShape shape{policy_.pipeline_schedule, cut.stages, policy_.micro_batches, 1};
    for (const PipelineSlot& slot : pipeline_slots(shape, cut.stage)) {
      if (slot.pass == PipelinePass::kForward) {
        stage_forward(slot.micro_batch);
      } else if (policy_.has_backward) {
        stage_backward(slot.micro_batch);
      }
    }
    if (!policy_.has_backward || !model_.tied) return;
    if (cut.is_last()) for_chunks(0, OpKind::kSendTiedGradient, false);
    if (cut.is_first()) for_chunks(0, OpKind::kReceiveTiedGradient, false);
  }

  void stage_forward(std::int32_t m) {
    const PipelineCut& cut = model_.pipeline;
    if (!cut.is_first()) emit(OpKind::kReceiveHidden, begin_ - 1, m);
    for (std::int32_t u = begin_; u < end_ && u < model_.head(); ++u) {
      if (m == 0) updates_before_forward(u);
      emit(OpKind::kForward, u, m);
    }
    if (!cut.is_last()) emit(OpKind::kSendHidden, end_ - 1, m);
    if (cut.is_last() && !policy_.has_backward) emit(OpKind::kHead, model_.head(), m);
  }

  void stage_backward(std::int32_t m) {
    const PipelineCut& cut = model_.pipeline;
    const bool last = m == policy_.micro_batches - 1;
    if (last) step_scalars();
    if (cut.is_last()) {
      if (m == 0) updates_before_forward(model_.head());
      emit(OpKind::kHead, model_.head(), m);
      if (last) update_at_once(model_.head());
    } else {
      emit(OpKind::kReceiveHiddenGradient, end_ - 1, m);
    }
    for (std::int32_t u = std::min(end_, model_.head()) - 1; u >= std::max(begin_, 1); --u) {
      emit(OpKind::kBackward, u, m);
      if (last) update_at_once(u);
    }
    if (!cut.is_first()) emit(OpKind::kSendHiddenGradient, begin_ - 1, m);
  }

  void for_chunks(std::int32_t unit, OpKind kind, bool deferred) {
    for (std::int32_t c = 0; c < model_.chunks(unit); ++c) {
      stages_.push_back({.kind = kind, .unit = unit, .chunk = c, .deferred = deferred});
    }
  }

  void emit(OpKind kind, std::int32_t unit, std::int32_t micro_batch) {
    stages_.push_back({.kind = kind, .unit = unit, .micro_batch = micro_batch});
  }

  // One unit ahead, so that the update of unit u+1 may run while unit u computes.
  void updates_before_forward(std::int32_t unit) {
    if (!policy_.has_backward) return;
    for (; next_update_ <= std::min(unit + 1, end_ - 1); ++next_update_) {
      if (policy_.defers_update(next_update_)) emit_updates(next_update_);
    }
  }

  void step_scalars() {
    if (!policy_.has_backward || policy_.updates_wait_for_norm) return;
    stages_.push_back({.kind = OpKind::kStepScalars});
  }

  void update_at_once(std::int32_t unit) {
    if (!policy_.defers_update(unit)) emit_updates(unit);
  }

  void emit_updates(std::int32_t unit) {
    for_chunks(unit, OpKind::kUpdate, policy_.defers_update(unit));
  }

  const StepModel& model_;
  const StepPolicy& policy_;
  std::vector<Stage> stages_;
  // The units of this pipeline stage.
  std::int32_t begin_ = 0;
  std::int32_t end_;
  std::int32_t next_update_ = 0;
};

}  // namespace

std::vector<Stage> schedule_step(const StepModel& model, const StepPolicy& policy) {
  return Scheduler(model, policy).run();
}

std::vector<Stage> add_recompute(const std::vector<Stage>& stages, const StepPolicy& policy) {
  std::vector<Stage> result;
  result.reserve(stages.size());
  for (const Stage& stage : stages) {
    if (stage.kind == OpKind::kBackward && policy.homes.at(stage.unit).recompute) {
      Stage again = stage;
      again.kind = OpKind::kRecompute;
      result.push_back(again);
    }
    result.push_back(stage);
  }
  return result;
}

std::vector<std::vector<std::int32_t>> parameter_uses(const StepModel& model,
                                                      const std::vector<Stage>& stages) {
  std::vector<std::vector<std::int32_t>> uses(model.unit_count());
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(stages.size()); ++s) {
    const Stage& stage = stages[s];
    const bool computes = stage.kind == OpKind::kForward || stage.kind == OpKind::kRecompute ||
                          stage.kind == OpKind::kBackward || stage.kind == OpKind::kHead;
    if (!computes) continue;
    uses.at(stage.unit).push_back(s);
    if (stage.kind == OpKind::kHead && model.tied) uses.front().push_back(s);
  }
  return uses;
}

}  // namespace terrace
