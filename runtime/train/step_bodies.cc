#include "runtime/train/step_bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "optim/grad_norm.h"

namespace terrace {

StepBodies::StepBodies(const Program& program, const ExecutorMemory& memory, const StepModel& model,
                       const UnitCompute& compute, const OptimizerOptions& optimizer,
                       const KernelTable& kernels, WorkerArena& compute_workers,
                       WorkerArena& update_workers)
    : program_(program),
      memory_(memory),
      model_(model),
      compute_(compute),
      optimizer_(optimizer),
      kernels_(kernels),
      compute_workers_(compute_workers),
      update_workers_(update_workers) {
  hidden_gradients_.reserve(static_cast<std::size_t>(program.micro_batches));
  for (const UnitLayout& unit : compute.layout()) {
    std::int64_t decayed = 0;
    for (const ParameterTensor& tensor : unit.tensors) {
      if (!tensor.decay) continue;
      TERRACE_CHECK_EQ(tensor.offset, decayed);  // matrices come first
      decayed += tensor.elements();
    }
    decayed_elements_.push_back(decayed);
  }
}

std::span<std::byte> StepBodies::bytes(const Access& access) const {
  return bytes_of(program_, memory_, access);
}

std::byte* StepBodies::data(const Op& op, Role role) const {
  const Access* access = op.find(role);
  return access == nullptr ? nullptr : bytes(*access).data();
}

KernelContext StepBodies::context_for(const Op& op, NativeStream stream) const {
  KernelContext context;
  context.workers = op.lane == Lane::kUpdate ? &update_workers_ : &compute_workers_;
  context.stream = stream;
  const Access* workspace = op.find(Role::kWorkspace);
  if (workspace != nullptr) context.workspace = bytes(*workspace);
  return context;
}

void StepBodies::run(const Op& op, const RunInput& input, NativeStream stream) {
  switch (op.kind) {
    case OpKind::kAccumulate:
      return accumulate(op);
    case OpKind::kNormPartials:
      return norm_partials(op, stream);
    case OpKind::kStepScalars:
      return step_scalars(op, input, 1.0F);
    case OpKind::kNormFinish:
      return norm_finish(op, input);
    case OpKind::kUpdate:
      return update(op, stream);
    default:
      return compute(op, input, stream);
  }
}

UnitMemory StepBodies::memory_of(const Op& op, const RunInput& input) const {
  UnitMemory memory;
  memory.parameters = data(op, Role::kParameters);
  memory.tied_parameters = data(op, Role::kTiedParameters);
  memory.constants = data(op, Role::kConstants);
  memory.tokens = data(op, Role::kTokens);
  memory.hidden = data(op, Role::kHidden);
  memory.hidden_out = data(op, Role::kHiddenOut);
  memory.hidden_gradient = data(op, Role::kHiddenGradient);
  memory.hidden_gradient_out = data(op, Role::kHiddenGradientOut);
  memory.gradient = data(op, Role::kGradient);
  memory.tied_gradient = data(op, Role::kTiedGradient);
  const auto mode = [&op](Role role) {
    return op.reads_role(role) ? GradientMode::kAccumulate : GradientMode::kAssign;
  };
  memory.gradient_mode = mode(Role::kGradient);
  memory.tied_gradient_mode = mode(Role::kTiedGradient);
  if (const Access* saved = op.find(Role::kSaved)) memory.saved = bytes(*saved);
  memory.loss_sum = reinterpret_cast<double*>(data(op, Role::kLosses));
  memory.gradient_scale = 1.0F / static_cast<float>(input.target_tokens);
  return memory;
}

void StepBodies::compute(const Op& op, const RunInput& input, NativeStream stream) {
  const KernelContext context = context_for(op, stream);
  const UnitMemory memory = memory_of(op, input);
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
      if (op.unit == 0) return compute_.embedding_forward(context, memory);
      return compute_.block_forward(context, op.unit, memory);
    case OpKind::kHead:
      return compute_.head(context, memory);
    case OpKind::kBackward:
      return compute_.block_backward(context, op.unit, memory);
    case OpKind::kEmbeddingBackward:
      return embedding_backward(op, context);
    default:
      TERRACE_CHECK(false);
  }
}

void StepBodies::embedding_backward(const Op& op, const KernelContext& context) {
  hidden_gradients_.clear();
  for (const Access& access : op.reads) {
    if (access.role == Role::kHiddenGradient) hidden_gradients_.push_back(bytes(access).data());
  }
  UnitMemory memory = memory_of(op, RunInput{});
  compute_.embedding_backward(context, memory, hidden_gradients_);
}

void StepBodies::accumulate(const Op& op) {
  const auto floats = [this](const Access& access) {
    return view(bytes(access).data(), DType::kF32,
                static_cast<std::int64_t>(access.size_bytes / sizeof(float)));
  };
  kernels_.accumulate_gradient(context_for(op, NativeStream{}),
                               {floats(*op.find(Role::kSource)), floats(op.writes.front())});
}

void StepBodies::norm_partials(const Op& op, NativeStream stream) {
  const Access& gradient = *op.find(Role::kGradient);
  const Access& partials = *op.find(Role::kPartials);
  kernels_.norm_partials(context_for(op, stream),
                         {view(bytes(gradient).data(), DType::kF32,
                               static_cast<std::int64_t>(gradient.size_bytes / sizeof(float))),
                          view(bytes(partials).data(), DType::kF64,
                               static_cast<std::int64_t>(partials.size_bytes / sizeof(double)))});
}

void StepBodies::norm_finish(const Op& op, const RunInput& input) {
  const auto* partials = reinterpret_cast<const double*>(data(op, Role::kPartials));
  const auto* losses = reinterpret_cast<const double*>(data(op, Role::kLosses));
  const double norm = gradient_norm({partials, static_cast<std::size_t>(model_.partials())});
  double loss = 0;
  for (std::int32_t m = 0; m < program_.micro_batches; ++m) loss += losses[m];
  loss /= static_cast<double>(input.target_tokens);
  if (input.result != nullptr) *input.result = {loss, norm};
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    throw NotFinite(
        fmt::format("step {}: loss {}, gradient norm {}", input.step, loss, norm),
        "lower --learning-rate, or look at the data of this step; what was saved before "
        "is untouched");
  }
  if (op.find(Role::kScalars) == nullptr) return;
  step_scalars(op, input, clip_coefficient(norm, optimizer_.max_grad_norm));
}

void StepBodies::step_scalars(const Op& op, const RunInput& input, float gradient_scale) {
  StepScalars scalars = input.scalars;
  scalars.gradient_scale = gradient_scale;
  std::memcpy(data(op, Role::kScalars), &scalars, sizeof(scalars));
}

void StepBodies::update(const Op& op, NativeStream stream) {
  const std::int64_t first = op.chunk * model_.chunk_elements;
  const std::int64_t count = model_.chunk_size(op.unit, op.chunk);
  AdamWUpdate update;
  update.gradient = view(data(op, Role::kGradient), DType::kF32, count);
  update.parameter = view(data(op, Role::kParameters), model_.compute_type, count);
  set_state_views(update, model_.state_format, data(op, Role::kState), count);
  update.options = optimizer_.adamw;
  update.decayed_elements = decayed_elements_.at(op.unit) - first;
  update.scalars = reinterpret_cast<const StepScalars*>(data(op, Role::kScalars));
  update.rounding = {.seed = optimizer_.seed,
                     .stream = kMomentStreams + static_cast<std::uint32_t>(op.unit),
                     .first_element = first};
  adamw_cpu(context_for(op, stream), update);
}

}  // namespace terrace
