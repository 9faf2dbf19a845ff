#include "runtime/engine/step_bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/failure_text.h"
#include "kernels/cpu/parallel_blocks.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

// Returns the type that an op adds over ranks. The lane between data-parallel ranks adds gradients.
// The lane between tensor-parallel ranks adds hidden states and their gradients, or fp32 gradients
// of norms.
DType sum_type(const Op& op, const StepModel& model) {
  if (op.lane != Lane::kTensor) return model.gradient_type;
  return op.account == Account::kGradients ? DType::kF32 : model.compute_type;
}

// Removes the sign of a value that is not a number, where it means nothing.
double printable(double value) { return std::isnan(value) ? std::fabs(value) : value; }

}  // namespace

StepBodies::StepBodies(const Program& program, const ExecutorMemory& memory, BlockStore* store,
                       const StepComputation& computation, const StepRanks& ranks)
    : program_(program),
      memory_(memory),
      model_(computation.model),
      compute_(computation.units),
      optimizer_(computation.optimizer),
      device_kernels_(computation.kernels),
      host_kernels_(cpu_lane_kernels()),
      compute_workers_(computation.compute_workers),
      update_workers_(computation.update_workers),
      name_of_option_(computation.name_of_option),
      ranks_(ranks),
      update_checksums_(program, memory, computation.model, store) {
  hidden_gradients_.reserve(static_cast<std::size_t>(program.micro_batches));
  embedding_views_.resize(kEmbeddingViews * static_cast<std::size_t>(program.micro_batches));
  for (const UnitModel& unit : model_.units) {
    groups_.reserve(unit.groups.size());
    inputs_.reserve(std::max<std::size_t>(1, unit.inputs.size()));
  }
}

std::span<std::byte> StepBodies::bytes(const Access& access) const {
  return bytes_of(program_, memory_, access);
}

std::byte* StepBodies::data(const Op& op, Role role) const {
  const Access* access = op.find(role);
  return access == nullptr ? nullptr : bytes(*access).data();
}

const LaneKernels& StepBodies::kernels_of(const Op& op) const {
  return op.lane == Lane::kUpdate ? host_kernels_ : device_kernels_;
}

KernelContext StepBodies::context_for(const Op& op, NativeStream stream) const {
  KernelContext context;
  context.workers = op.lane == Lane::kUpdate ? &update_workers_ : &compute_workers_;
  context.stream = stream;
  context.products = kernels_of(op).products;
  context.attention = kernels_of(op).attention;
  const Access* workspace = op.find(Role::kWorkspace);
  if (workspace != nullptr) context.workspace = bytes(*workspace);
  return context;
}

void StepBodies::run(const Op& op, const RunInput& input, NativeStream stream) {
  switch (op.kind) {
    case OpKind::kAccumulate:
      return accumulate(op, stream);
    case OpKind::kRoundGradient:
      return round_gradient(op, stream);
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
      if (op.lane == Lane::kTensor) return tensor_collective(op, stream);
      return collective(op, stream);
    case OpKind::kGatherSums:
      return gather_sums(op, stream);
    case OpKind::kSend:
    case OpKind::kReceive:
      return pass_between_stages(op, stream);
    case OpKind::kNormPartials:
      return norm_partials(op, stream);
    case OpKind::kStepScalars:
      return set_step_scalars(op, input.scalars, input.update_number, input.learning_rate);
    case OpKind::kNormFinish:
      return norm_finish(op, input);
    case OpKind::kUpdate:
      return update(op, stream);
    default:
      return compute(op, input, stream);
  }
}

// Puts each buffer of an op where its role says that a unit finds it.
void StepBodies::OpMemory::fill(StepBodies& bodies, const Op& op, const RunInput& input) {
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) {
      std::byte* const data = bodies.bytes(access).data();
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
  if (op.find(Role::kLossScale) != nullptr) memory.gradient_scale *= bodies.loss_scale(op).scale;
}

std::span<const GroupMemory> StepBodies::group_memory(const Op& op) {
  groups_.assign(model_.units.at(static_cast<std::size_t>(op.unit)).groups.size(), {});
  const auto of = [this](const Access& access) -> GroupMemory& {
    return groups_.at(static_cast<std::size_t>(access.number));
  };
  for (const Access& read : op.reads) {
    if (read.role == Role::kParameters) of(read).parameters = bytes(read).data();
    if (read.role == Role::kGradient) of(read).gradient_mode = GradientMode::kAccumulate;
  }
  for (const Access& write : op.writes) {
    if (write.role == Role::kGradient) of(write).gradient = bytes(write).data();
  }
  return groups_;
}

std::span<const InputMemory> StepBodies::input_memory(const Op& op) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  inputs_.assign(std::max<std::size_t>(1, unit.inputs.size()), {});
  const auto of = [this](const Access& access) -> InputMemory& {
    return inputs_.at(static_cast<std::size_t>(access.number));
  };
  for (const Access& read : op.reads) {
    if (read.role == Role::kHidden) of(read).hidden = bytes(read).data();
    if (read.role == Role::kHiddenGradientOut) of(read).gradient_mode = GradientMode::kAccumulate;
  }
  for (const Access& write : op.writes) {
    if (write.role == Role::kHiddenGradientOut) of(write).gradient = bytes(write).data();
  }
  return inputs_;
}

void StepBodies::compute(const Op& op, const RunInput& input, NativeStream stream) {
  const KernelContext context = context_for(op, stream);
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
    default:
      TERRACE_CHECK(false);
  }
}

// Notes that the compute of units has thrown: that is this rank's own reason to fail, whatever the
// type of the error.
void StepBodies::run_task(const KernelContext& context, const ComputeTask& task,
                          const UnitMemory& memory) {
  try {
    compute_.run(context, task, memory);
  } catch (...) {
    compute_failed_ = true;
    throw;
  }
}

void StepBodies::joined_backward(const Op& op, const RunInput& input,
                                 const KernelContext& context) {
  hidden_gradients_.clear();
  for (const Access& access : op.reads) {
    if (access.role == Role::kHiddenGradient) hidden_gradients_.push_back(bytes(access).data());
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

TensorView StepBodies::gradient_view(const Access& access) const {
  const DType type = model_.gradient_type;
  return view(bytes(access).data(), type,
              static_cast<std::int64_t>(access.size_bytes / size_of(type)));
}

void StepBodies::round_gradient(const Op& op, NativeStream stream) {
  const Access& sum = *op.find(Role::kSource);
  const TensorView source = view(bytes(sum).data(), DType::kF32,
                                 static_cast<std::int64_t>(sum.size_bytes / sizeof(float)));
  kernels_of(op).table->round_gradient(context_for(op, stream),
                                       {source, gradient_view(*op.find(Role::kTarget))});
}

void StepBodies::accumulate(const Op& op, NativeStream stream) {
  const auto floats = [this](const Access& access) {
    return view(bytes(access).data(), DType::kF32,
                static_cast<std::int64_t>(access.size_bytes / sizeof(float)));
  };
  kernels_of(op).table->accumulate_gradient(
      context_for(op, stream), {floats(*op.find(Role::kSource)), floats(op.writes.front())});
}

void StepBodies::norm_partials(const Op& op, NativeStream stream) {
  const Access& gradient = *op.find(Role::kGradient);
  const Access& partials = *op.find(Role::kPartials);
  kernels_of(op).table->norm_partials(
      context_for(op, stream),
      {gradient_view(gradient),
       view(bytes(partials).data(), DType::kF64,
            static_cast<std::int64_t>(partials.size_bytes / sizeof(double)))});
}

void StepBodies::collective(const Op& op, NativeStream stream) {
  const bool adds = op.kind != OpKind::kAllGather;
  const DType dtype = adds ? sum_type(op, model_) : model_.parameter_type(op.group);
  const auto elements = [&](Role role) {
    const std::span<std::byte> memory = bytes(*op.find(role));
    return view(memory.data(), dtype, static_cast<std::int64_t>(memory.size() / size_of(dtype)));
  };
  const TensorView source = elements(Role::kSource);
  const TensorView target = elements(Role::kTarget);
  Communicator& ranks = communicator_for(ranks_.data, *op.find(Role::kSource));
  if (op.kind == OpKind::kAllReduce) return ranks.all_reduce(target, ReduceOp::kSum, stream);
  if (adds) return ranks.reduce_scatter(target, source, ReduceOp::kSum, stream);
  ranks.all_gather(target, source, stream);
}

// Gathers bytes whatever their type, because they are only copied.
void StepBodies::tensor_collective(const Op& op, NativeStream stream) {
  const DType dtype = op.kind == OpKind::kAllGather ? DType::kU8 : sum_type(op, model_);
  const auto elements = [&](Role role) {
    const std::span<std::byte> memory = bytes(*op.find(role));
    return view(memory.data(), dtype, static_cast<std::int64_t>(memory.size() / size_of(dtype)));
  };
  const TensorView source = elements(Role::kSource);
  const TensorView target = elements(Role::kTarget);
  Communicator& ranks = communicator_for(ranks_.tensor, *op.find(Role::kSource));
  if (op.kind == OpKind::kAllGather) return ranks.all_gather(target, source, stream);
  if (op.kind == OpKind::kAllReduce) return ranks.all_reduce(target, ReduceOp::kSum, stream);
  // The target may be a whole buffer, whose size is rounded up to its alignment.
  const TensorView part = view(target.data, dtype, source.elements() / ranks.size());
  ranks.reduce_scatter(part, source, ReduceOp::kSum, stream);
}

void StepBodies::pass_between_stages(const Op& op, NativeStream stream) {
  const LaneTraits& lane = traits_of(op.lane);
  const bool sends = lane.kind == LaneKind::kSend;
  const Access& access = *op.find(sends ? Role::kSource : Role::kTarget);
  const TensorView message = view(bytes(access));
  Communicator& pair = communicator_for(ranks_.links.of(op.lane), access);
  const int peer = lane.neighbour > 0 ? kLaterStage : kEarlierStage;
  if (sends) return pair.send(message, peer, stream);
  pair.recv(message, peer, stream);
}

// Gathers, per rank, its norm partials, where the other ranks do not have them, and then its
// losses. It throws before it looks at what an ended call has left in them.
void StepBodies::gather_sums(const Op& op, NativeStream stream) {
  ranks_.throw_if_aborted();
  const std::size_t rank_bytes = sums_bytes_of_rank(model_, program_.micro_batches);
  const std::size_t loss_bytes = static_cast<std::size_t>(program_.micro_batches) * sizeof(double);
  const auto ranks = static_cast<std::size_t>(ranks_.world->size());
  const std::span<std::byte> sums = bytes(*op.find(Role::kSums)).first(ranks * rank_bytes);
  const std::span<std::byte> own =
      sums.subspan(rank_bytes * static_cast<std::size_t>(ranks_.world->rank()), rank_bytes);
  if (const Access* partials = op.find(Role::kPartials)) {
    std::memcpy(own.data(), bytes(*partials).data(),
                static_cast<std::size_t>(model_.partials()) * sizeof(double));
  }
  std::memcpy(own.data() + rank_bytes - loss_bytes, data(op, Role::kLosses), loss_bytes);
  const auto as_doubles = [](std::span<std::byte> memory) {
    return view(memory.data(), DType::kF64,
                static_cast<std::int64_t>(memory.size() / sizeof(double)));
  };
  ranks_.world->all_gather(as_doubles(sums), as_doubles(own), stream);
}

const double* StepBodies::sums_of_rank(const Op& op, std::int32_t rank) const {
  const auto* sums = reinterpret_cast<const double*>(data(op, Role::kSums));
  const std::size_t stride = sums_bytes_of_rank(model_, program_.micro_batches) / sizeof(double);
  return sums + static_cast<std::size_t>(rank) * stride;
}

// Within a chunk, adds the partials of one data-parallel rank after those of another. Elements that
// all tensor-parallel ranks have alike are counted once, with the first rank's partials.
void StepBodies::add_partials(const Op& op, std::int32_t group, std::int32_t tensor_rank,
                              std::size_t at, GradientNorm& norm) const {
  const std::int32_t stage = model_.stage_of(model_.owner(group));
  const std::int32_t holders = model_.zero.of_optimizer() ? model_.zero.ranks : 1;
  const ParameterGroup& of = model_.groups.at(static_cast<std::size_t>(group));
  const bool counts_all = tensor_rank == 0 || of.replicated.empty();
  const std::int64_t end =
      (counts_all ? of.trained_elements() : of.replicated.begin) / kBlockElements;
  std::int64_t block = 0;
  for (std::int64_t chunk = 0; chunk < model_.trained_chunks(group); ++chunk) {
    const std::int64_t count = model_.chunk_size(group, chunk) / (kBlockElements * holders);
    for (std::int32_t rank = 0; rank < holders; ++rank, block += count) {
      const double* partials = sums_of_rank(op, model_.rank_of(stage, rank, tensor_rank));
      const std::int64_t counted = std::clamp<std::int64_t>(end - block, 0, count);
      norm.add({partials + at, static_cast<std::size_t>(counted)});
    }
    at += static_cast<std::size_t>(count);
  }
}

// Adds the partials in global order, as one rank alone has them. Within a group, the partials of
// one tensor-parallel rank follow those of another.
double StepBodies::norm_of_gradient(const Op& op) const {
  GradientNorm norm;
  if (!model_.gathers_partials()) {
    const auto* own = reinterpret_cast<const double*>(data(op, Role::kPartials));
    norm.add({own, static_cast<std::size_t>(model_.partials())});
    return norm.value();
  }
  const std::int32_t holders = model_.zero.of_optimizer() ? model_.zero.ranks : 1;
  std::vector<std::size_t> first(static_cast<std::size_t>(model_.pipeline.stages), 0);
  for (std::int32_t group = 0; group < model_.group_count(); ++group) {
    const std::int32_t stage = model_.stage_of(model_.owner(group));
    std::size_t& at = first[static_cast<std::size_t>(stage)];
    for (std::int32_t tensor = 0; tensor < model_.tensor.ranks; ++tensor) {
      add_partials(op, group, tensor, at, norm);
    }
    at += static_cast<std::size_t>(
        model_.groups.at(static_cast<std::size_t>(group)).trained_elements() /
        (kBlockElements * holders));
  }
  return norm.value();
}

// Adds in (rank, micro-batch) order. The last stage has the losses, and all of its tensor-parallel
// ranks have the same ones.
double StepBodies::sum_of_losses(const Op& op) const {
  const auto count = static_cast<std::size_t>(program_.micro_batches);
  double sum = 0;
  const auto add = [&](const double* losses) {
    for (std::size_t m = 0; m < count; ++m) sum += losses[m];
  };
  if (model_.ranks() == 1) {
    add(reinterpret_cast<const double*>(data(op, Role::kLosses)));
    return sum;
  }
  const std::size_t partials =
      sums_bytes_of_rank(model_, program_.micro_batches) / sizeof(double) - count;
  for (std::int32_t rank = 0; rank < model_.zero.ranks; ++rank) {
    add(sums_of_rank(op, model_.rank_of(model_.pipeline.stages - 1, rank, 0)) + partials);
  }
  return sum;
}

bool StepBodies::failed(const std::exception_ptr& error) noexcept {
  if (ranks_.world == nullptr) return false;
  try {
    std::rethrow_exception(error);
  } catch (const NotFinite& cause) {
    if (!compute_failed_) return true;  // from sums that all ranks have
    ranks_.world->abort(cause.what());
  } catch (const CommError& cause) {
    if (!compute_failed_) return false;  // the rank that knows why tells the others
    ranks_.world->abort(cause.what());
  } catch (const std::exception& cause) {
    ranks_.world->abort(failure_text(cause));
  } catch (...) {
    ranks_.world->abort("an unknown error");
  }
  return false;
}

void StepBodies::norm_finish(const Op& op, const RunInput& input) {
  norm_is_held_.wait(true, std::memory_order_acquire);
  const double norm = norm_of_gradient(op);
  const double loss = sum_of_losses(op) / static_cast<double>(input.target_tokens);
  if (model_.scales_loss) return scaled_norm_finish(op, input, loss, norm);
  if (input.result != nullptr) *input.result = {loss, norm};
  const bool is_finite = std::isfinite(loss) && std::isfinite(norm);
  if (sink_ != nullptr || (!is_finite && optimizer_.can_skip_steps)) {
    if (input.result != nullptr) input.result->was_skipped = true;
    is_giving_ = sink_ != nullptr;
    StepScalars scalars = input.scalars;
    scalars.skips = 1;
    scalars.gradient_scale = 0.0F;
    return set_step_scalars(op, scalars, input.update_number, input.learning_rate);
  }
  if (!is_finite) {
    throw NotFinite(
        fmt::format("step {}: loss {}, gradient norm {}", input.step, printable(loss),
                    printable(norm)),
        fmt::format("lower {}, or check the data of this step; what was saved before is intact",
                    name_of_option_(Option::kLearningRate)));
  }
  if (op.find(Role::kScalars) == nullptr) return;
  StepScalars scalars = input.scalars;
  scalars.gradient_scale = clip_coefficient(norm, optimizer_.max_grad_norm);
  set_step_scalars(op, scalars, input.update_number, input.learning_rate);
}

// Every rank has the same sums, so every rank comes to the same outcome.
void StepBodies::scaled_norm_finish(const Op& op, const RunInput& input, double loss, double norm) {
  const LossScaleOptions& options = optimizer_.loss_scale;
  const LossScaleState before = loss_scale(op);
  const bool overflows = !std::isfinite(loss) || !std::isfinite(norm);
  const double unscaled = overflows ? std::numeric_limits<double>::infinity() : norm / before.scale;
  if (input.result != nullptr) *input.result = {loss, unscaled, before.scale, overflows};
  if (overflows && !can_skip(options, before)) {
    throw NotFinite(
        fmt::format("step {}: loss {}, and gradients overflow fp16 even at the smallest loss "
                    "scale, {}",
                    input.step, printable(loss), before.scale),
        fmt::format(
            "use {} bf16, lower {}, or check the data of this step; what was saved before is "
            "intact",
            name_of_option_(Option::kPrecision), name_of_option_(Option::kLearningRate)));
  }
  StepScalars scalars = input.scalars;
  scalars.skips = overflows ? 1 : 0;
  // Both are exact: the scale is a power of two.
  scalars.gradient_scale =
      overflows ? 0.0F : clip_coefficient(unscaled, optimizer_.max_grad_norm) / before.scale;
  set_step_scalars(op, scalars, input.step - before.skipped_steps, scalars.learning_rate);
  const LossScaleState after =
      overflows ? after_overflow(options, before) : after_good_step(options, before);
  std::memcpy(data(op, Role::kLossScale), &after, sizeof(after));
}

LossScaleState StepBodies::loss_scale(const Op& op) const {
  LossScaleState state;
  std::memcpy(&state, data(op, Role::kLossScale), sizeof(state));
  return state;
}

void StepBodies::set_step_scalars(const Op& op, StepScalars scalars, std::int64_t update_number,
                                  double learning_rate) {
  for (std::int32_t number = 0; number < model_.rules(); ++number) {
    const FurtherRule of = optimizer_.rule_of(number);
    scalars.of_rule = of.rule->step_scalars(of.numbers, update_number, learning_rate);
    std::byte* const room =
        data(op, Role::kScalars) + kScalarBytes * static_cast<std::size_t>(number);
    std::memcpy(room, &scalars, sizeof(scalars));
  }
}

void StepBodies::update(const Op& op, NativeStream stream) {
  const ChunkPart part = model_.home_part(StateClass::kOptimizer, op.group, op.chunk);
  const std::int64_t first = model_.chunk_begin(op.group, op.chunk) + part.begin;
  ParameterUpdate update;
  update.gradient = view(data(op, Role::kGradient), model_.gradient_type, part.count);
  if (is_giving_) {
    (*sink_)(op.group, first, {update.gradient.as<float>(), static_cast<std::size_t>(part.count)});
  }
  update.parameter = view(data(op, Role::kParameters), model_.parameter_type(op.group), part.count);
  set_state_views(update, model_.format_of(op.group), data(op, Role::kState), part.count);
  const ParameterGroup& group = model_.groups.at(static_cast<std::size_t>(op.group));
  const FurtherRule of = optimizer_.rule_of(group.rule);
  update.options = of.numbers;
  update.decayed_elements = group.decayed_elements - first;
  update.scalars = reinterpret_cast<const StepScalars*>(
      data(op, Role::kScalars) + kScalarBytes * static_cast<std::size_t>(group.rule));
  update.rounding = {.seed = optimizer_.seed,
                     .stream = kMomentStreams + static_cast<std::uint32_t>(op.group),
                     .first_element = first};
  const UpdateChecksums::Parts* parts =
      op.lane == Lane::kUpdate ? update_checksums_.parts_of(op) : nullptr;
  if (parts != nullptr) return update_with_checksums(*of.rule, update, *parts);
  kernels_of(op).update(context_for(op, stream), *of.rule, update);
}

void StepBodies::update_with_checksums(const UpdateRule& rule, const ParameterUpdate& update,
                                       const UpdateChecksums::Parts& parts) {
  static_assert(kElementBlock % UpdateChecksums::kBlock == 0);
  // Fetches the elements that are compared next from memory while this block is updated.
  ParameterUpdate fetching = update;
  fetching.fetch_elements = UpdateChecksums::kBlock;
  KernelContext context;
  context.workers = &update_workers_;
  for_each_block(context, update.gradient.elements(), kElementBlock,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t first = begin; first < end; first += UpdateChecksums::kBlock) {
                     const std::int64_t last = std::min(first + UpdateChecksums::kBlock, end);
                     update_checksums_.compare(parts, first, last);
                     rule.cpu_range(fetching, first, last);
                     update_checksums_.take(parts, first, last);
                   }
                 });
}

}  // namespace terrace
