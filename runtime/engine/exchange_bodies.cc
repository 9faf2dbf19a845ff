#include "runtime/engine/exchange_bodies.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "runtime/step/homes.h"
#include "runtime/step/router_figures.h"

namespace terrace {
namespace {

// Returns the type that an op adds over ranks. The lane between data-parallel ranks adds gradients.
// The lane between tensor-parallel ranks adds hidden states and their gradients, or fp32 gradients
// of norms.
DType sum_type(const Op& op, const StepModel& model) {
  if (op.lane != Lane::kTensor) return model.gradient_type;
  return op.account == Account::kGradients ? DType::kF32 : model.compute_type;
}

// Returns whether an op gathers codes of parameters.
bool gathers_codes(const Op& op, const StepModel& model) {
  return op.kind == OpKind::kAllGather && op.account == Account::kParameters &&
         model.codes_parameters() && op.chunk < model.trained_chunks(op.group);
}

}  // namespace

void ExchangeBodies::run(const Op& op, const RunInput& input, NativeStream stream) const {
  switch (op.kind) {
    case OpKind::kGatherSums:
      return gather_sums(op, input, stream);
    case OpKind::kSend:
    case OpKind::kReceive:
      return pass_between_stages(op, stream);
    case OpKind::kAllToAll:
      return pass_codes(op, stream);
    default:
      TERRACE_CHECK(op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter ||
                    op.kind == OpKind::kAllGather);
      if (op.lane == Lane::kTensor) return tensor_collective(op, stream);
      if (op.lane != Lane::kCollective) return island_gather(op, stream);
      if (gathers_codes(op, model_)) return pass_codes(op, stream);
      return collective(op, stream);
  }
}

// The home of an island's rank has a piece of the chunk for each island (HomePart). The pieces of
// one number, of all ranks of the island, are neighbours in the chunk.
void ExchangeBodies::island_gather(const Op& op, NativeStream stream) const {
  TERRACE_CHECK(op.kind == OpKind::kAllGather);
  const StepGroup& group = op.lane == Lane::kIsland ? ranks_.island : ranks_.inter_island;
  Communicator& ranks = communicator_for(group, *op.find(Role::kSource));
  const std::span<std::byte> source = bytes_.of(*op.find(Role::kSource));
  const std::span<std::byte> target = bytes_.of(*op.find(Role::kTarget));
  const auto pieces = static_cast<std::size_t>(op.lane == Lane::kIsland ? model_.zero.islands : 1);
  const std::size_t piece = source.size() / pieces;
  const std::size_t gathered = piece * static_cast<std::size_t>(ranks.size());
  for (std::size_t i = 0; i < pieces; ++i) {
    ranks.all_gather(view(target.subspan(i * gathered, gathered)),
                     view(source.subspan(i * piece, piece)), stream);
  }
}

void ExchangeBodies::pass_codes(const Op& op, NativeStream stream) const {
  const TensorView source = view(bytes_.of(*op.find(Role::kSource)));
  const TensorView target = view(bytes_.of(*op.find(Role::kTarget)));
  Communicator& ranks = communicator_for(ranks_.data, *op.find(Role::kSource));
  if (op.kind == OpKind::kAllToAll) return ranks.all_to_all(target, source, stream);
  ranks.all_gather(target, source, stream);
}

void ExchangeBodies::collective(const Op& op, NativeStream stream) const {
  const bool adds = op.kind != OpKind::kAllGather;
  const DType dtype = adds ? sum_type(op, model_) : model_.parameter_type(op.group);
  const auto elements = [&](Role role) {
    const std::span<std::byte> memory = bytes_.of(*op.find(role));
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
void ExchangeBodies::tensor_collective(const Op& op, NativeStream stream) const {
  const DType dtype = op.kind == OpKind::kAllGather ? DType::kU8 : sum_type(op, model_);
  const auto elements = [&](Role role) {
    const std::span<std::byte> memory = bytes_.of(*op.find(role));
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

void ExchangeBodies::pass_between_stages(const Op& op, NativeStream stream) const {
  const LaneTraits& lane = traits_of(op.lane);
  const bool sends = lane.kind == LaneKind::kSend;
  const Access& access = *op.find(sends ? Role::kSource : Role::kTarget);
  const TensorView message = view(bytes_.of(access));
  Communicator& pair = communicator_for(ranks_.links.of(op.lane), access);
  const int peer = lane.neighbour > 0 ? kLaterStage : kEarlierStage;
  if (sends) return pair.send(message, peer, stream);
  pair.recv(message, peer, stream);
}

// Writes the sums of this rank's routers, folded, to their place among its sums.
void ExchangeBodies::fold_routers(const Op& op, std::span<std::byte> own) const {
  const auto micro_batches = static_cast<std::size_t>(bytes_.program.micro_batches);
  const auto folded = static_cast<std::size_t>(model_.folded_router_sums());
  if (folded == 0) return;
  const std::span<double> target(
      reinterpret_cast<double*>(own.data() + router_offset_in_sums(model_)),
      micro_batches * folded);
  std::ranges::fill(target, 0.0);
  const Access* const access = op.find(Role::kRouterSums);
  if (access == nullptr) return;
  const auto size = static_cast<std::size_t>(model_.router_sums);
  const auto layers = static_cast<std::size_t>(model_.router_layers());
  const auto* const sums = reinterpret_cast<const double*>(bytes_.of(*access).data());
  std::size_t layer = 0;
  for (std::int32_t unit = 0; unit <= model_.last_unit(); ++unit) {
    if (!model_.leaves_router_sums(unit)) continue;
    for (std::size_t m = 0; m < micro_batches && model_.has_unit(unit); ++m) {
      fold_router_sums({sums + (m * layers + layer) * size, size},
                       target.subspan(m * folded, folded));
    }
    ++layer;
  }
}

// Writes the sums of this rank's small batch to their place among its sums.
void ExchangeBodies::fold_noise(const Op& op, const RunInput& input,
                                std::span<std::byte> own) const {
  if (!model_.measures_noise) return;
  std::byte* const target = own.data() + noise_offset_in_sums(model_, bytes_.program.micro_batches);
  fold_noise_partials(
      model_, reinterpret_cast<const double*>(bytes_.data(op, Role::kNoisePartials)),
      input.small_batch_tokens, {reinterpret_cast<double*>(target), noise_sums_of_rank(model_)});
}

// Gathers, per rank, its norm partials, where the other ranks do not have them, the folded sums of
// its routers, its sums for the gradient noise scale, and its losses, which are 0 for micro-batches
// that the run does not have. It throws before it looks at what an ended call has left in them.
void ExchangeBodies::gather_sums(const Op& op, const RunInput& input, NativeStream stream) const {
  ranks_.throw_if_aborted();
  const std::size_t rank_bytes = sums_bytes_of_rank(model_, bytes_.program.micro_batches);
  const std::size_t loss_bytes =
      static_cast<std::size_t>(bytes_.program.micro_batches) * sizeof(double);
  const auto ranks = static_cast<std::size_t>(ranks_.world->size());
  const std::span<std::byte> sums = bytes_.of(*op.find(Role::kSums)).first(ranks * rank_bytes);
  const std::span<std::byte> own =
      sums.subspan(rank_bytes * static_cast<std::size_t>(ranks_.world->rank()), rank_bytes);
  if (const Access* partials = op.find(Role::kPartials)) {
    std::memcpy(own.data(), bytes_.of(*partials).data(),
                static_cast<std::size_t>(model_.partials()) * sizeof(double));
  }
  fold_routers(op, own);
  fold_noise(op, input, own);
  const std::span<std::byte> losses = own.last(loss_bytes);
  const std::size_t left = sizeof(double) * static_cast<std::size_t>(std::min(
                                                input.micro_batches, bytes_.program.micro_batches));
  std::memcpy(losses.data(), bytes_.data(op, Role::kLosses), left);
  std::ranges::fill(losses.subspan(left), std::byte{0});
  const auto as_doubles = [](std::span<std::byte> memory) {
    return view(memory.data(), DType::kF64,
                static_cast<std::int64_t>(memory.size() / sizeof(double)));
  };
  ranks_.world->all_gather(as_doubles(sums), as_doubles(own), stream);
}

}  // namespace terrace
