#include "runtime/plan/order_bound.h"

#include <algorithm>

namespace terrace {

double least_moved_micro_batch_major(const StepModel& model, std::int32_t micro_batches,
                                     bool unified, std::size_t compute_bytes) {
  double elements = 0;  // of the blocks, each of which a forward and a backward use once
  for (std::int32_t u = 1; u < model.head(); ++u) {
    elements += static_cast<double>(model.units.at(static_cast<std::size_t>(u)).padded_elements);
  }
  const double room = static_cast<double>(compute_bytes);
  const double parameters = elements * static_cast<double>(model.parameter_bytes());
  const double gradients = elements * sizeof(float);
  // Where ranks have shards, a load needs at least what the others have.
  const double moved_part =
      model.zero.of_parameters() ? static_cast<double>(model.zero.ranks - 1) / model.zero.ranks : 1;
  // A processor's memory keeps all sums. A device's keeps some, and the others pass the link.
  const double for_backward = std::max(0.0, parameters + (unified ? gradients : 0) - room);
  const double for_forward = std::max(0.0, parameters + gradients - room);
  return moved_part * (micro_batches - 1) * (for_backward + for_forward);
}

}  // namespace terrace
