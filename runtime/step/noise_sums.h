#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/function_ref.h"
#include "runtime/step/step_model.h"

// The numbers of the gradient of a small batch that ranks bring together at the end of a step: for
// each group of parameters its sum of squares, then the number of counted tokens of the small
// batch. The sum of a group does not depend on how ranks divide the state, and groups are added in
// their order. So the result has the same bits with every stage of ZeRO and every number of
// pipeline stages.
namespace terrace {

// The squared norm of the gradient of a small batch: StepModel::measures_noise says which samples
// it has. With several data-parallel ranks each rank has one, and this is their mean.
struct SmallBatch {
  double squared_norm = 0;    // of the mean gradient over the counted tokens of the small batch
  double tokens = 0;          // the harmonic mean of the counted tokens of the small batches
  double tokens_of_step = 0;  // of all ranks

  friend bool operator==(const SmallBatch&, const SmallBatch&) = default;
};

// Returns the number of norm partials of the small batch that a rank of this pipeline stage
// computes for all groups before this one. No rank has only a part of that gradient.
std::int64_t noise_partials_before(const StepModel& model, std::int32_t group);
// Returns the number for all groups; 0 where the model does not measure noise.
std::int64_t noise_partials(const StepModel& model);
// Returns whether the small batch is the first micro-batch.
bool measures_first_micro_batch(const StepModel& model);

// Returns how many numbers a rank has: none where the model does not measure noise.
std::size_t noise_sums_of_rank(const StepModel& model);

// Writes a rank's numbers. `partials` are the rank's noise_partials() norm partials, in
// the order of elements. Elements that all tensor-parallel ranks have alike are counted by the
// first of them.
void fold_noise_partials(const StepModel& model, const double* partials, std::int64_t tokens,
                         std::span<double> sums);

// Returns the small batch of a step from the numbers of all ranks. `sums_of` returns the numbers of
// the rank with this number. `gradient_scale` is the factor that the sums of gradients have. The
// gradients are divided by it. Returns nothing if no small batch has a counted token, or if it has
// all tokens of the step.
std::optional<SmallBatch> small_batch_of(
    const StepModel& model, FunctionRef<std::span<const double>(std::int32_t rank)> sums_of,
    double tokens_of_step, double gradient_scale);

}  // namespace terrace
