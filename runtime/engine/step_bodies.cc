#include "runtime/engine/step_bodies.h"

#include <algorithm>

#include "base/failure_text.h"
#include "kernels/cpu/parallel_blocks.h"
#include "runtime/step/coded_exchange.h"
#include "runtime/step/homes.h"

namespace terrace {

StepBodies::StepBodies(const Program& program, const ExecutorMemory& memory, BlockStore* store,
                       const StepComputation& computation, const StepRanks& ranks)
    : bytes_{program, memory},
      model_(computation.model),
      optimizer_(computation.optimizer),
      device_kernels_(computation.kernels),
      host_kernels_(cpu_lane_kernels()),
      compute_workers_(computation.compute_workers),
      update_workers_(computation.update_workers),
      ranks_(ranks),
      update_checksums_(program, memory, computation.model, store),
      units_(bytes_, computation.model, computation.units),
      norms_(bytes_, computation.model, {computation.optimizer, computation.name_of_option},
             gradients_),
      exchanges_(bytes_, computation.model, ranks) {
  if (!model_.wire.are_plain()) code_workers_.emplace(1);
}

bool StepBodies::is_on_host(const Op& op) const {
  if (op.lane != Lane::kCode) return op.lane == Lane::kUpdate;
  return !codes_on_device(bytes_.program, op);
}

const LaneKernels& StepBodies::kernels_of(const Op& op) const {
  return is_on_host(op) ? host_kernels_ : device_kernels_;
}

KernelContext StepBodies::context_for(const Op& op, NativeStream stream) const {
  KernelContext context;
  context.workers = op.lane == Lane::kUpdate ? &update_workers_ : &compute_workers_;
  if (op.lane == Lane::kCode) context.workers = &*code_workers_;
  context.stream = stream;
  context.products = kernels_of(op).products;
  context.attention = kernels_of(op).attention;
  const Access* workspace = op.find(Role::kWorkspace);
  if (workspace != nullptr) context.workspace = bytes_.of(*workspace);
  return context;
}

void StepBodies::run(const Op& op, const RunInput& input, NativeStream stream) {
  switch (op.kind) {
    case OpKind::kAccumulate:
      return accumulate(op, stream);
    case OpKind::kRoundGradient:
      return round_gradient(op, stream);
    case OpKind::kEncode:
      return encode(op, stream);
    case OpKind::kDecode:
    case OpKind::kDecodeSum:
      return decode(op, stream);
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
    case OpKind::kGatherSums:
    case OpKind::kSend:
    case OpKind::kReceive:
      return exchanges_.run(op, input, stream);
    case OpKind::kNormPartials:
      return norm_partials(op, gradient_view(*op.find(Role::kGradient)), stream);
    case OpKind::kNoisePartials:
      return norm_partials(op, sum_view(*op.find(Role::kGradient)), stream);
    case OpKind::kKeepGradient:
      return kernels_of(op).table->cast_parameters(
          context_for(op, stream),
          {sum_view(*op.find(Role::kSource)), sum_view(*op.find(Role::kTarget))});
    case OpKind::kStepScalars:
      return norms_.set_step_scalars(op, input.scalars, input.update_number, input.learning_rate);
    case OpKind::kNormFinish:
      return norms_.finish(op, input);
    case OpKind::kUpdate:
      return update(op, stream);
    default:
      return units_.run(op, input, context_for(op, stream));
  }
}

TensorView StepBodies::typed_view(const Access& access, DType type) const {
  return view(bytes_.of(access).data(), type,
              static_cast<std::int64_t>(access.size_bytes / size_of(type)));
}

TensorView StepBodies::rows_view(const Access& access, std::int64_t rows) const {
  return view(bytes_.of(access).data(), DType::kU8, rows,
              static_cast<std::int64_t>(access.size_bytes) / rows);
}

void StepBodies::round_gradient(const Op& op, NativeStream stream) {
  kernels_of(op).table->round_gradient(
      context_for(op, stream),
      {sum_view(*op.find(Role::kSource)), gradient_view(*op.find(Role::kTarget))});
}

// Gradients are encoded in a part for each rank. A rank encodes only its own part of parameters.
void StepBodies::encode(const Op& op, NativeStream stream) {
  const bool is_gradient = op.account == Account::kGradients;
  const DType type = is_gradient ? DType::kF32 : model_.parameter_type(op.group);
  const std::int64_t parts = is_gradient ? model_.zero.ranks : 1;
  EncodeWire encode{.form = is_gradient ? model_.wire.gradients : model_.wire.parameters,
                    .source = typed_view(*op.find(Role::kSource), type),
                    .codes = rows_view(*op.find(Role::kTarget), parts),
                    .errors = {}};
  const Access* const errors = op.find(Role::kErrors);
  if (errors != nullptr) {  // whose home is rounded up
    const std::size_t bytes = coded_bytes(WireForm::kInt8, encode.source.elements());
    encode.errors = view(bytes_.of(*errors).data(), DType::kU8, static_cast<std::int64_t>(bytes));
  }
  kernels_of(op).table->encode_wire(context_for(op, stream), encode);
}

void StepBodies::decode(const Op& op, NativeStream stream) {
  const TensorView codes = rows_view(*op.find(Role::kSource), model_.zero.ranks);
  const Access& target = *op.find(Role::kTarget);
  if (op.kind == OpKind::kDecodeSum) {
    return kernels_of(op).table->sum_wire(context_for(op, stream),
                                          {model_.wire.gradients, codes, gradient_view(target)});
  }
  kernels_of(op).table->decode_wire(
      context_for(op, stream),
      {model_.wire.parameters, codes, typed_view(target, model_.parameter_type(op.group))});
}

void StepBodies::accumulate(const Op& op, NativeStream stream) {
  kernels_of(op).table->accumulate_gradient(
      context_for(op, stream), {sum_view(*op.find(Role::kSource)), sum_view(op.writes.front())});
}

void StepBodies::norm_partials(const Op& op, const TensorView& gradient, NativeStream stream) {
  const Access& partials = op.writes.front();
  kernels_of(op).table->norm_partials(
      context_for(op, stream),
      {gradient, view(bytes_.of(partials).data(), DType::kF64,
                      static_cast<std::int64_t>(partials.size_bytes / sizeof(double)))});
}

bool StepBodies::failed(const std::exception_ptr& error) noexcept {
  if (ranks_.world == nullptr) return false;
  try {
    std::rethrow_exception(error);
  } catch (const NotFinite& cause) {
    if (!units_.has_failed()) return true;  // from sums that all ranks have
    ranks_.world->abort(cause.what());
  } catch (const CommError& cause) {
    if (!units_.has_failed()) return false;  // the rank that knows why tells the others
    ranks_.world->abort(cause.what());
  } catch (const std::exception& cause) {
    ranks_.world->abort(failure_text(cause));
  } catch (...) {
    ranks_.world->abort("an unknown error");
  }
  return false;
}

void StepBodies::update(const Op& op, NativeStream stream) {
  const HomePart home = model_.home_part(StateClass::kOptimizer, op.group, op.chunk);
  ParameterUpdate whole;
  whole.gradient = view(bytes_.data(op, Role::kGradient), model_.gradient_type, home.count);
  whole.parameter =
      view(bytes_.data(op, Role::kParameters), model_.parameter_type(op.group), home.count);
  set_state_views(whole, model_.format_of(op.group), bytes_.data(op, Role::kState), home.count);
  for (std::int32_t piece = 0; piece < home.pieces; ++piece) {
    update_piece(op, home, piece, whole, stream);
  }
}

// Updates the elements of a piece, which are neighbours in the chunk.
void StepBodies::update_piece(const Op& op, const HomePart& home, std::int32_t piece,
                              const ParameterUpdate& whole, NativeStream stream) {
  const std::int64_t begin = piece * home.piece_elements();
  const std::int64_t first = model_.chunk_begin(op.group, op.chunk) + home.element_at(begin);
  ParameterUpdate update =
      home.pieces == 1 ? whole : part_of_update(whole, begin, home.piece_elements());
  if (gradients_.is_giving()) {
    (*gradients_.sink())(
        op.group, first,
        {update.gradient.as<float>(), static_cast<std::size_t>(home.piece_elements())});
  }
  const ParameterGroup& group = model_.groups.at(static_cast<std::size_t>(op.group));
  const FurtherRule of = optimizer_.rule_of(group.rule);
  update.options = of.numbers;
  update.decayed_elements = group.decayed_elements - first;
  update.scalars = reinterpret_cast<const StepScalars*>(
      bytes_.data(op, Role::kScalars) + kScalarBytes * static_cast<std::size_t>(group.rule));
  update.rounding = {
      .seed = optimizer_.seed,
      .stream = kMomentStreams + static_cast<std::uint32_t>(group.stream.value_or(op.group)),
      .first_element = group.first_element + first};
  const UpdateChecksums::Parts* parts =
      op.lane == Lane::kUpdate ? update_checksums_.parts_of(op) : nullptr;
  if (parts != nullptr) {
    TERRACE_CHECK_EQ(home.pieces, 1);
    return update_with_checksums(*of.rule, update, *parts);
  }
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
