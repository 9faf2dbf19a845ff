#include "runtime/step/step_model.h"

#include <algorithm>

namespace terrace {

std::int64_t StepModel::chunks(std::int32_t unit) const {
  return (units.at(unit).padded_elements + chunk_elements - 1) / chunk_elements;
}

std::int64_t StepModel::chunk_size(std::int32_t unit, std::int64_t chunk) const {
  return std::min(chunk_elements, units.at(unit).padded_elements - chunk * chunk_elements);
}

std::size_t StepModel::parameter_chunk_bytes(std::int32_t unit, std::int64_t chunk) const {
  return static_cast<std::size_t>(chunk_size(unit, chunk)) * parameter_bytes();
}

std::size_t StepModel::state_chunk_bytes(std::int32_t unit, std::int64_t chunk) const {
  return state_format.bytes(chunk_size(unit, chunk));
}

std::int64_t StepModel::first_partial(std::int32_t unit) const {
  std::int64_t partials = 0;
  for (std::int32_t u = 0; u < unit; ++u) partials += units.at(u).padded_elements / kBlockElements;
  return partials;
}

}  // namespace terrace
