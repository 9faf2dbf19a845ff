#include "runtime/step/movement.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "runtime/step/pass_movement.h"
#include "runtime/step/update_movement.h"

namespace terrace {
namespace {

// Goes through the tasks once, and hands each to the part of the pass that moves what it needs.
class MovementPass {
 public:
  MovementPass(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
               bool has_names)
      : state_(model, policy, tasks, has_names), parameters_(state_), activations_(state_) {
    if (policy.has_backward) {
      std::vector<Homes> states = add_update_states(state_);
      gradients_.emplace(state_);
      updates_.emplace(state_, std::move(states), parameters_, *gradients_);
    }
    passes_.emplace(state_, parameters_, activations_, gradients_ ? &*gradients_ : nullptr);
  }

  Draft run() {
    const auto tasks = std::ssize(state_.tasks);
    for (const Task& task : state_.tasks) {
      add(task);
      const bool norm_ends_next =
          state_.now + 1 < tasks && state_.tasks[state_.now + 1].kind == OpKind::kNormFinish;
      if (norm_ends_next && gradients_.has_value()) gradients_->add_late_partials();
      ++state_.now;
    }
    return std::move(state_.draft);
  }

 private:
  void add(const Task& task) {
    switch (task.kind) {
      case OpKind::kInput:
        return add_input();
      case OpKind::kForward:
      case OpKind::kRecompute:
        return passes_->add_part(task);
      case OpKind::kBackward:
        return task.micro_batch < 0 ? passes_->add_joined_backward(task) : passes_->add_part(task);
      case OpKind::kSend:
      case OpKind::kReceive:
        return add_message(task);
      case OpKind::kStepScalars:
        return updates_->step_scalars();
      case OpKind::kNormFinish:
        return updates_->norm_finish();
      case OpKind::kUpdate:
        return updates_->update(task);
      default:
        TERRACE_CHECK(false);
    }
  }

  void add_input() {
    const bool unified = state_.policy.unified;
    Op op{.kind = OpKind::kInput, .lane = unified ? Lane::kCompute : Lane::kUpload};
    op.writes = {as(Role::kTokens, state_.whole(state_.shared.tokens))};
    op.account = Account::kWorkspace;
    if (!unified) op.cost.bytes = static_cast<double>(op.writes[0].size_bytes);
    state_.add_main(std::move(op), Task{});
  }

  // An updated parameter is sent right after its update, not by a task of its own.
  void add_message(const Task& task) {
    switch (task.message) {
      case Message::kHidden:
      case Message::kHiddenGradient:
        return activations_.pass_message(task);
      case Message::kBorrowedGradient:
        return gradients_->pass_borrowed(task);
      case Message::kUpdated:
        TERRACE_CHECK(task.kind == OpKind::kReceive);
        return parameters_.receive_updated(task);
      case Message::kRouterSums:
      case Message::kLaterRouterSums:
        return passes_->pass_router_sums(task);
      case Message::kNone:
        break;
    }
    TERRACE_CHECK(false);
  }

  MovementState state_;
  ParameterMovement parameters_;
  ActivationMovement activations_;
  std::optional<GradientMovement> gradients_;  // and updates: in a step with a backward
  std::optional<UpdateMovement> updates_;
  std::optional<PassMovement> passes_;
};

}  // namespace

Draft add_movement(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
                   bool has_names) {
  return MovementPass(model, policy, tasks, has_names).run();
}

}  // namespace terrace
