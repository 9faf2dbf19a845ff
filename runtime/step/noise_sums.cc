#include "runtime/step/noise_sums.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

std::int64_t noise_partials_before(const StepModel& model, std::int32_t group) {
  std::int64_t blocks = 0;
  for (std::int32_t g = 0; g < group; ++g) {
    const ParameterGroup& of = model.groups.at(static_cast<std::size_t>(g));
    if (model.owns(g)) blocks += of.trained_elements() / kBlockElements;
  }
  return blocks;
}

std::int64_t noise_partials(const StepModel& model) {
  return model.measures_noise ? noise_partials_before(model, model.group_count()) : 0;
}

bool measures_first_micro_batch(const StepModel& model) {
  return model.measures_noise && model.zero.ranks == 1;
}

std::size_t noise_sums_of_rank(const StepModel& model) {
  return model.measures_noise ? static_cast<std::size_t>(model.group_count()) + 1 : 0;
}

void fold_noise_partials(const StepModel& model, const double* partials, std::int64_t tokens,
                         std::span<double> sums) {
  TERRACE_CHECK_EQ(sums.size(), noise_sums_of_rank(model));
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    double& sum = sums[static_cast<std::size_t>(g)];
    sum = 0;
    if (!model.owns(g)) continue;
    const ParameterGroup& group = model.groups.at(static_cast<std::size_t>(g));
    const auto blocks = static_cast<std::size_t>(group.trained_elements() / kBlockElements);
    const auto begin = static_cast<std::size_t>(group.replicated.begin / kBlockElements);
    const auto end = static_cast<std::size_t>(group.replicated.end / kBlockElements);
    const bool counts_all = model.tensor.rank == 0 || group.replicated.empty();
    for (std::size_t block = 0; block < blocks; ++block) {
      const bool is_counted = counts_all || block < begin || block >= end;
      if (is_counted) sum += partials[block];
    }
    partials += blocks;
  }
  sums.back() = static_cast<double>(tokens);
}

// Adds, for each data-parallel rank, its groups in order, and the tensor-parallel ranks' parts of
// a group in order.
std::optional<SmallBatch> small_batch_of(
    const StepModel& model, FunctionRef<std::span<const double>(std::int32_t rank)> sums_of,
    double tokens_of_step, double gradient_scale) {
  double norms = 0;
  double inverse_tokens = 0;
  double most_tokens = 0;
  std::int32_t batches = 0;
  for (std::int32_t data = 0; data < model.zero.ranks; ++data) {
    const double tokens = sums_of(model.rank_of(0, data, 0)).back();
    if (tokens == 0) continue;
    double squares = 0;
    for (std::int32_t g = 0; g < model.group_count(); ++g) {
      const std::int32_t stage = model.stage_of(model.owner(g));
      for (std::int32_t tensor = 0; tensor < model.tensor.ranks; ++tensor) {
        squares += sums_of(model.rank_of(stage, data, tensor))[static_cast<std::size_t>(g)];
      }
    }
    // The gradient is a sum over the tokens of the small batch, divided by the tokens of the step.
    const double factor = tokens_of_step / tokens / gradient_scale;
    norms += squares * factor * factor;
    inverse_tokens += 1 / tokens;
    most_tokens = std::max(most_tokens, tokens);
    ++batches;
  }
  if (batches == 0 || most_tokens >= tokens_of_step) return std::nullopt;
  return SmallBatch{norms / batches, batches / inverse_tokens, tokens_of_step};
}

}  // namespace terrace
