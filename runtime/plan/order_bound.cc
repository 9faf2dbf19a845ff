#include "runtime/plan/order_bound.h"

#include <algorithm>

namespace terrace {

double moved_bytes(const Program& program) {
  double bytes = 0;
  for (const Lane lane :
       {Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite, Lane::kCollective}) {
    bytes += lane_bytes(program, lane);
  }
  return bytes;
}

double least_moved_micro_batch_major(const StepModel& model, std::int32_t micro_batches,
                                     bool unified, std::size_t compute_bytes) {
  // The elements of the blocks that a forward uses once, that a backward uses, and that have
  // gradients.
  double in_forward = 0;
  double in_backward = 0;
  double trained = 0;
  for (std::int32_t u = 1; u < model.last_unit(); ++u) {
    const UnitModel& unit = model.units.at(static_cast<std::size_t>(u));
    const auto elements = static_cast<double>(unit.padded_elements);
    in_forward += elements;
    if (u >= model.lowest_trained()) in_backward += elements;
    trained += static_cast<double>(unit.trained_elements());
  }
  const double room = static_cast<double>(compute_bytes);
  const auto width = static_cast<double>(model.parameter_bytes());
  const double gradients = trained * sizeof(float);
  // Where ranks have shards, a load moves at least the other ranks' shards.
  const double moved_part =
      model.zero.of_parameters() ? static_cast<double>(model.zero.ranks - 1) / model.zero.ranks : 1;
  // The memory of processors keeps all sums. A device's memory keeps some, and the others cross the
  // link.
  const double for_backward = std::max(0.0, in_backward * width + (unified ? gradients : 0) - room);
  const double for_forward = std::max(0.0, in_forward * width + gradients - room);
  return moved_part * (micro_batches - 1) * (for_backward + for_forward);
}

}  // namespace terrace
