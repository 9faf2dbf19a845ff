#include "runtime/engine/norm_bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

// Removes the sign of a value that is not a number, where it means nothing.
double printable(double value) { return std::isnan(value) ? std::fabs(value) : value; }

}  // namespace

LossScaleState loss_scale_of(const OpBytes& bytes, const Op& op) {
  LossScaleState state;
  std::memcpy(&state, bytes.data(op, Role::kLossScale), sizeof(state));
  return state;
}

const double* NormBodies::sums_of_rank(const Op& op, std::int32_t rank) const {
  const auto* sums = reinterpret_cast<const double*>(bytes_.data(op, Role::kSums));
  const std::size_t stride =
      sums_bytes_of_rank(model_, bytes_.program.micro_batches) / sizeof(double);
  return sums + static_cast<std::size_t>(rank) * stride;
}

// Within a chunk, adds the partials of one data-parallel rank after those of another. Elements that
// all tensor-parallel ranks have alike are counted once, with the first rank's partials.
void NormBodies::add_partials(const Op& op, std::int32_t group, std::int32_t tensor_rank,
                              std::size_t at, GradientNorm& norm) const {
  const std::int32_t stage = model_.stage_of(model_.owner(group));
  const std::int32_t holders = model_.zero.of_optimizer() ? model_.zero.ranks : 1;
  const ParameterGroup& of = model_.groups.at(static_cast<std::size_t>(group));
  const bool counts_all = tensor_rank == 0 || of.replicated.empty();
  const std::int64_t trained = of.trained_elements() / kBlockElements;
  // The blocks from `begin` up to `end` are left out.
  const std::int64_t begin = counts_all ? trained : of.replicated.begin / kBlockElements;
  const std::int64_t end = counts_all ? trained : of.replicated.end / kBlockElements;
  std::int64_t block = 0;
  for (std::int64_t chunk = 0; chunk < model_.trained_chunks(group); ++chunk) {
    const std::int64_t count = model_.chunk_size(group, chunk) / (kBlockElements * holders);
    for (std::int32_t rank = 0; rank < holders; ++rank, block += count) {
      const double* partials = sums_of_rank(op, model_.rank_of(stage, rank, tensor_rank));
      const auto in_chunk = [&](std::int64_t number) {
        return static_cast<std::size_t>(std::clamp<std::int64_t>(number - block, 0, count));
      };
      norm.add({partials + at, in_chunk(begin)});
      norm.add({partials + at + in_chunk(end), in_chunk(trained) - in_chunk(end)});
    }
    at += static_cast<std::size_t>(count);
  }
}

// Adds the partials in global order, as one rank alone has them. Within a group, the partials of
// one tensor-parallel rank follow those of another.
double NormBodies::norm_of_gradient(const Op& op) const {
  GradientNorm norm;
  if (!model_.gathers_partials()) {
    const auto* own = reinterpret_cast<const double*>(bytes_.data(op, Role::kPartials));
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
// ranks have the same ones. Another rank may have another number of micro-batches; those that it
// has not have the loss 0.
double NormBodies::sum_of_losses(const Op& op, const RunInput& input) const {
  const std::int32_t count = std::min(input.micro_batches, bytes_.program.micro_batches);
  double sum = 0;
  const auto add = [&](const double* losses, std::int32_t micro_batches) {
    for (std::int32_t m = 0; m < micro_batches; ++m) sum += losses[m];
  };
  if (model_.ranks() == 1) {
    add(reinterpret_cast<const double*>(bytes_.data(op, Role::kLosses)), count);
    return sum;
  }
  const std::size_t before =
      loss_offset_in_sums(model_, bytes_.program.micro_batches) / sizeof(double);
  for (std::int32_t rank = 0; rank < model_.zero.ranks; ++rank) {
    add(sums_of_rank(op, model_.rank_of(model_.pipeline.stages - 1, rank, 0)) + before,
        bytes_.program.micro_batches);
  }
  return sum;
}

// Adds in (rank, micro-batch) order. All tensor-parallel ranks have the same sums.
std::optional<RouterFigures> NormBodies::router_figures(const Op& op) {
  if (model_.router_layers() == 0) return std::nullopt;
  const auto count = static_cast<std::size_t>(bytes_.program.micro_batches);
  router_.begin();
  if (model_.ranks() == 1) {
    const auto size = static_cast<std::size_t>(model_.router_layers() * model_.router_sums);
    const auto* own = reinterpret_cast<const double*>(bytes_.data(op, Role::kRouterSums));
    for (std::size_t m = 0; m < count; ++m) {
      router_.add_layers({own + m * size, size});
      router_.end_micro_batch();
    }
    return router_.figures();
  }
  const auto size = static_cast<std::size_t>(model_.folded_router_sums());
  const std::size_t before = router_offset_in_sums(model_) / sizeof(double);
  for (std::int32_t rank = 0; rank < model_.zero.ranks; ++rank) {
    for (std::size_t m = 0; m < count; ++m) {
      for (std::int32_t stage = 0; stage < model_.pipeline.stages; ++stage) {
        const double* const of_rank = sums_of_rank(op, model_.rank_of(stage, rank, 0)) + before;
        router_.add_stage({of_rank + m * size, size});
      }
      router_.end_micro_batch();
    }
  }
  return router_.figures();
}

std::optional<SmallBatch> NormBodies::small_batch(const Op& op, const RunInput& input,
                                                  double scale) {
  if (!model_.measures_noise) return std::nullopt;
  const auto tokens = static_cast<double>(input.target_tokens);
  if (model_.ranks() == 1) {
    const auto* own = reinterpret_cast<const double*>(bytes_.data(op, Role::kNoisePartials));
    fold_noise_partials(model_, own, input.small_batch_tokens, noise_sums_);
    const auto own_sums = [this](std::int32_t) { return std::span<const double>(noise_sums_); };
    return small_batch_of(model_, own_sums, tokens, scale);
  }
  const std::size_t before =
      noise_offset_in_sums(model_, bytes_.program.micro_batches) / sizeof(double);
  const auto sums_of = [&](std::int32_t rank) {
    return std::span(sums_of_rank(op, rank) + before, noise_sums_of_rank(model_));
  };
  return small_batch_of(model_, sums_of, tokens, scale);
}

void NormBodies::finish(const Op& op, const RunInput& input) {
  is_held_.wait(true, std::memory_order_acquire);
  const double norm = norm_of_gradient(op);
  const double loss = sum_of_losses(op, input) / static_cast<double>(input.target_tokens);
  if (model_.scales_loss) return finish_scaled(op, input, loss, norm);
  if (input.result != nullptr) *input.result = {loss, norm};
  if (input.result != nullptr) {
    input.result->router = router_figures(op);
    input.result->small_batch = small_batch(op, input, 1.0);
  }
  const bool is_finite = std::isfinite(loss) && std::isfinite(norm);
  if (gradients_.sink() != nullptr || (!is_finite && optimizer_.can_skip_steps)) {
    if (input.result != nullptr) input.result->was_skipped = true;
    if (gradients_.sink() != nullptr) gradients_.begin();
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
void NormBodies::finish_scaled(const Op& op, const RunInput& input, double loss, double norm) {
  const LossScaleOptions& options = optimizer_.loss_scale;
  const LossScaleState before = loss_scale_of(bytes_, op);
  const bool overflows = !std::isfinite(loss) || !std::isfinite(norm);
  const double unscaled = overflows ? std::numeric_limits<double>::infinity() : norm / before.scale;
  if (input.result != nullptr) {
    *input.result = {loss, unscaled, before.scale, overflows, router_figures(op)};
    if (!overflows) input.result->small_batch = small_batch(op, input, before.scale);
  }
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
  std::memcpy(bytes_.data(op, Role::kLossScale), &after, sizeof(after));
}

void NormBodies::set_step_scalars(const Op& op, StepScalars scalars, std::int64_t update_number,
                                  double learning_rate) {
  for (std::int32_t number = 0; number < model_.rules(); ++number) {
    const FurtherRule of = optimizer_.rule_of(number);
    scalars.of_rule = of.rule->step_scalars(of.numbers, update_number, learning_rate);
    std::byte* const room =
        bytes_.data(op, Role::kScalars) + kScalarBytes * static_cast<std::size_t>(number);
    std::memcpy(room, &scalars, sizeof(scalars));
  }
}

}  // namespace terrace
