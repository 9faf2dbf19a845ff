#include "runtime/engine/unit_bodies.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

UnitBodies::UnitBodies(const OpBytes& bytes, const StepModel& model, StepCompute& compute)
    : bytes_(bytes), model_(model), compute_(compute) {
  const auto micro_batches = static_cast<std::size_t>(bytes.program.micro_batches);
  hidden_gradients_.reserve(micro_batches);
  embedding_views_.resize(kEmbeddingViews * micro_batches);
  for (const UnitModel& unit : model_.units) {
    groups_.reserve(unit.groups.size());
    inputs_.reserve(std::max<std::size_t>(1, unit.inputs.size()));
  }
}

// Puts each buffer of an op where its role says that a unit finds it.
void UnitBodies::OpMemory::fill(UnitBodies& bodies, const Op& op, const RunInput& input) {
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) {
      std::byte* const data = bodies.bytes_.of(access).data();
      if (access.role == Role::kBetween) {
        between.at(static_cast<std::size_t>(access.number)) = data;
      } else if (access.number == 0) {
        memory.of(access.role) = data;
      }
    }
  }
  memory.between = between;
  memory.inputs = bodies.input_memory(op);
  memory.groups = bodies.group_memory(op);
  if (!memory.groups.empty()) memory.gradient_mode = memory.groups.front().gradient_mode;
  memory.gradient_scale = 1.0F / static_cast<float>(input.target_tokens);
  const auto means =
      static_cast<float>(bodies.bytes_.program.micro_batches * bodies.model_.zero.ranks);
  memory.mean_scale = 1.0F / means;
  if (op.find(Role::kLossScale) != nullptr) {
    const float scale = loss_scale_of(bodies.bytes_, op).scale;
    memory.gradient_scale *= scale;
    memory.mean_scale *= scale;
  }
}

std::span<const GroupMemory> UnitBodies::group_memory(const Op& op) {
  groups_.assign(model_.units.at(static_cast<std::size_t>(op.unit)).groups.size(), {});
  const auto of = [this](const Access& access) -> GroupMemory& {
    return groups_.at(static_cast<std::size_t>(access.number));
  };
  for (const Access& read : op.reads) {
    if (read.role == Role::kParameters) of(read).parameters = bytes_.of(read).data();
    if (read.role == Role::kGradient) of(read).gradient_mode = GradientMode::kAccumulate;
  }
  for (const Access& write : op.writes) {
    if (write.role == Role::kGradient) of(write).gradient = bytes_.of(write).data();
  }
  return groups_;
}

std::span<const InputMemory> UnitBodies::input_memory(const Op& op) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  inputs_.assign(std::max<std::size_t>(1, unit.inputs.size()), {});
  const auto of = [this](const Access& access) -> InputMemory& {
    return inputs_.at(static_cast<std::size_t>(access.number));
  };
  for (const Access& read : op.reads) {
    if (read.role == Role::kHidden) of(read).hidden = bytes_.of(read).data();
    if (read.role == Role::kHiddenGradientOut) of(read).gradient_mode = GradientMode::kAccumulate;
  }
  for (const Access& write : op.writes) {
    if (write.role == Role::kHiddenGradientOut) of(write).gradient = bytes_.of(write).data();
  }
  return inputs_;
}

void UnitBodies::run(const Op& op, const RunInput& input, const KernelContext& context) {
  OpMemory found;
  found.fill(*this, op, input);
  const auto run = [&](UnitPass pass) {
    run_task(context, {op.unit, pass, op.step, op.micro_batch, op.use}, found.memory);
  };
  switch (op.kind) {
    case OpKind::kForward:
      return run(UnitPass::kForward);
    case OpKind::kRecompute:
      return run(UnitPass::kRecompute);
    case OpKind::kBackward:
      if (op.micro_batch < 0) return joined_backward(op, input, context);
      return run(UnitPass::kBackward);
    case OpKind::kFirstBackward:
      return joined_backward(op, input, context);
    default:
      TERRACE_CHECK(false);
  }
}

// Notes that the compute of units has thrown: that is this rank's own reason to fail, whatever the
// type of the error.
void UnitBodies::run_task(const KernelContext& context, const ComputeTask& task,
                          const UnitMemory& memory) {
  try {
    compute_.run(context, task, memory);
  } catch (...) {
    has_failed_ = true;
    throw;
  }
}

void UnitBodies::joined_backward(const Op& op, const RunInput& input,
                                 const KernelContext& context) {
  hidden_gradients_.clear();
  for (const Access& access : op.reads) {
    if (std::cmp_equal(hidden_gradients_.size(), input.micro_batches)) break;
    if (access.role == Role::kHiddenGradient) hidden_gradients_.push_back(bytes_.of(access).data());
  }
  OpMemory found;
  found.fill(*this, op, input);
  const ComputeTask task = {.unit = op.unit,
                            .pass = UnitPass::kBackward,
                            .micro_batch = -1,
                            .hidden_gradients = hidden_gradients_,
                            .views = embedding_views_};
  run_task(context, task, found.memory);
}

}  // namespace terrace
