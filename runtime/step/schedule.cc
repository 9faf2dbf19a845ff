#include "runtime/step/schedule.h"

namespace terrace {
namespace {

class Scheduler {
 public:
  Scheduler(const StepModel& model, const StepPolicy& policy) : model_(model), policy_(policy) {}

  std::vector<Stage> run() {
    stages_.push_back({.kind = OpKind::kInput});
    if (policy_.order == MicroBatchOrder::kLayerMajor) {
      layer_major();
    } else {
      micro_batch_major();
    }
    if (policy_.has_backward) {
      stages_.push_back({.kind = OpKind::kEmbeddingBackward, .unit = 0});
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

  void emit(OpKind kind, std::int32_t unit, std::int32_t micro_batch) {
    stages_.push_back({.kind = kind, .unit = unit, .micro_batch = micro_batch});
  }

  // One unit ahead, so that the update of unit u+1 may run while unit u computes.
  void updates_before_forward(std::int32_t unit) {
    if (!policy_.has_backward) return;
    for (; next_update_ <= unit + 1; ++next_update_) {
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
    for (std::int32_t c = 0; c < model_.chunks(unit); ++c) {
      stages_.push_back({.kind = OpKind::kUpdate,
                         .unit = unit,
                         .chunk = c,
                         .deferred = policy_.defers_update(unit)});
    }
  }

  const StepModel& model_;
  const StepPolicy& policy_;
  std::vector<Stage> stages_;
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
