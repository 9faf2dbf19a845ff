#include "runtime/step/movement_state.h"

#include <algorithm>

namespace terrace {
namespace {

// About how many ops and buffers, and accesses, a task becomes: room for them is taken at once.
constexpr std::size_t kOpsPerTask = 4;
constexpr std::size_t kAccessesPerTask = 16;

Draft empty_draft(Tier compute, bool has_names, std::size_t tasks) {
  Draft draft;
  draft.compute_tier = compute;
  draft.has_names = has_names;
  draft.ops.reserve(kOpsPerTask * tasks);
  draft.accesses.reserve(kAccessesPerTask * tasks);
  draft.buffers.reserve(kOpsPerTask * tasks);
  return draft;
}

}  // namespace

MovementState::MovementState(const StepModel& model_of_step, const StepPolicy& policy_of_step,
                             const std::vector<Task>& tasks_of_step, bool has_names)
    : model(model_of_step),
      policy(policy_of_step),
      tasks(tasks_of_step),
      compute(policy.compute_tier()),
      draft(empty_draft(compute, has_names, tasks.size())),
      shared(add_shared_buffers(draft, model, policy)) {
  draft.period = period_of(tasks);
  if (!draft.period.has_value()) return;
  if (shared.tokens != kNoBuffer) draft.strides.push_back({shared.tokens, model.tokens_bytes});
  draft.strides.push_back({shared.losses, sizeof(double)});
  if (shared.router_sums != kNoBuffer) {
    const Range first = router_sums_of(0, 0, model.router_layers());
    draft.strides.push_back({shared.router_sums, first.size_bytes});
  }
}

Op MovementState::compute_op(const Task& task) const {
  Op op{.kind = task.kind, .lane = Lane::kCompute, .use = task.use};
  if (shared.constants != kNoBuffer) {
    op.reads.push_back(as(Role::kConstants, whole(shared.constants)));
  }
  if (shared.workspace != kNoBuffer) {
    op.writes.push_back(as(Role::kWorkspace, whole(shared.workspace)));
  }
  return op;
}

void MovementState::add_main(Op op, const Task& task) {
  op.unit = task.unit;
  op.group = task.group;
  op.micro_batch = task.micro_batch;
  op.chunk = task.chunk;
  op.parts = task.parts;
  op.message = task.message;
  DraftOp draft_op;
  draft_op.op = std::move(op);
  draft_op.task = now;
  draft.add_op(std::move(draft_op));
}

void MovementState::add_loss_scale(Op& op) const {
  if (shared.loss_scale == kNoBuffer) return;
  op.reads.push_back(as(Role::kLossScale, whole(shared.loss_scale)));
}

Range MovementState::router_sums_of(std::int32_t micro_batch, std::int32_t begin,
                                    std::int32_t end) const {
  if (shared.router_sums == kNoBuffer) return {};
  const std::size_t layer_bytes = static_cast<std::size_t>(model.router_sums) * sizeof(double);
  const std::int32_t first = micro_batch * model.router_layers() + begin;
  return {shared.router_sums, static_cast<std::size_t>(first) * layer_bytes,
          static_cast<std::size_t>(end - begin) * layer_bytes};
}

Load MovementState::load_of_now(std::int32_t earliest, std::size_t target_bytes) const {
  Load load;
  load.need_task = now;
  load.earliest_task = std::min(earliest, now);
  load.target_tier = compute;
  load.target_bytes = target_bytes;
  return load;
}

Load MovementState::load_from(const Range& home, Tier where, std::int32_t earliest,
                              std::size_t target_bytes) const {
  Load load = load_of_now(earliest, target_bytes);
  load.target_tier = where;
  const bool two_hops = where == Tier::kDevice && draft.tier_of(home) == Tier::kNvme;
  load.staging_bytes = two_hops ? home.size_bytes : 0;
  return load;
}

Range MovementState::brought(const Mover::Labels& labels, std::int32_t chunk, const Range& home,
                             Tier where, std::int32_t earliest) {
  if (draft.tier_of(home) == where) return home;
  Load load = load_from(home, where, earliest, home.size_bytes);
  load.is_late = labels.parts == kOfStepBefore && labels.account == Account::kGradients;
  load.may_be_carried = labels.parts == kOfStepBefore && is_of_updates(labels.account);
  Mover mover = Mover::load(draft, load, labels);
  return mover.bring(home, where, chunk);
}

void MovementState::store_back(const Task& task, const Range& range, const Range& home,
                               Account account) {
  if (range.buffer == home.buffer) return;
  Mover mover = store(labels(task, account));
  mover.copy(range, home, task.chunk);
}

}  // namespace terrace
