#include "runtime/step/step_model.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

std::int64_t StepModel::chunks(std::int32_t unit) const {
  return trained_chunks(unit) +
         (units.at(unit).frozen_elements + chunk_elements - 1) / chunk_elements;
}

std::int64_t StepModel::trained_chunks(std::int32_t unit) const {
  return (units.at(unit).trained_elements() + chunk_elements - 1) / chunk_elements;
}

std::int64_t StepModel::chunk_begin(std::int32_t unit, std::int64_t chunk) const {
  const std::int64_t trained = trained_chunks(unit);
  if (chunk < trained) return chunk * chunk_elements;
  return units.at(unit).trained_elements() + (chunk - trained) * chunk_elements;
}

std::int64_t StepModel::chunk_size(std::int32_t unit, std::int64_t chunk) const {
  const bool trains = chunk < trained_chunks(unit);
  const std::int64_t end =
      trains ? units.at(unit).trained_elements() : units.at(unit).padded_elements;
  return std::min(chunk_elements, end - chunk_begin(unit, chunk));
}

std::int64_t StepModel::chunk_of(std::int32_t unit, std::int64_t element) const {
  const std::int64_t trained = units.at(unit).trained_elements();
  if (element < trained) return element / chunk_elements;
  return trained_chunks(unit) + (element - trained) / chunk_elements;
}

std::int32_t StepModel::lowest_trained() const {
  std::int32_t unit = 0;
  while (unit < last_unit() && !trains(unit)) ++unit;
  return unit;
}

bool StepModel::has_tied_gradient() const {
  return UnitModel::writes(units.back().backward, Role::kTiedGradient);
}

ChunkPart StepModel::shard(std::int32_t unit, std::int64_t chunk, std::int32_t rank) const {
  const std::int64_t count = chunk_size(unit, chunk) / zero.ranks;
  return {rank * count, count};
}

std::size_t StepModel::state_bytes(StateClass state, std::int64_t elements) const {
  switch (state) {
    case StateClass::kParameters:
      return static_cast<std::size_t>(elements) * parameter_bytes();
    case StateClass::kGradients:
      return static_cast<std::size_t>(elements) * size_of(gradient_type);
    case StateClass::kOptimizer:
      return state_format.bytes(elements);
    case StateClass::kActivations:
      break;
  }
  TERRACE_CHECK(false);
  return 0;
}

bool StepModel::has_home(StateClass state, std::int32_t unit) const {
  const bool is_of_all = info_of(state).use == StateUse::kEveryPass;
  return is_of_all ? has_parameters(unit) : has_unit(unit) && trains(unit);
}

std::int64_t StepModel::home_chunks(StateClass state, std::int32_t unit) const {
  return info_of(state).use == StateUse::kEveryPass ? chunks(unit) : trained_chunks(unit);
}

ChunkPart StepModel::home_part(StateClass state, std::int32_t unit, std::int64_t chunk) const {
  return zero.of(state) ? shard(unit, chunk, zero.rank) : whole(unit, chunk);
}

std::size_t StepModel::home_bytes(StateClass state, std::int32_t unit, std::int64_t chunk) const {
  return state_bytes(state, home_part(state, unit, chunk).count);
}

std::size_t StepModel::home_offset(StateClass state, std::int32_t unit, std::int64_t chunk) const {
  std::size_t bytes = 0;
  for (std::int64_t before = 0; before < chunk; ++before) bytes += home_bytes(state, unit, before);
  return bytes;
}

std::int64_t StepModel::partials_before(std::int32_t unit, std::int32_t stage) const {
  std::int64_t blocks = 0;
  for (std::int32_t u = 0; u < unit; ++u) {
    if (pipeline.stages > 1 && pipeline.stage_of(u) != stage) continue;
    blocks += units.at(u).trained_elements() / kBlockElements;
  }
  return zero.of_optimizer() ? blocks / zero.ranks : blocks;
}

std::int64_t StepModel::most_partials() const {
  std::int64_t most = 0;
  for (std::int32_t stage = 0; stage < pipeline.stages; ++stage) {
    most = std::max(most, partials_before(last_unit() + 1, stage));
  }
  return most;
}

std::int32_t PipelineCut::stage_of(std::int32_t unit) const {
  const auto after = std::upper_bound(first_units.begin(), first_units.end() - 1, unit);
  return (static_cast<std::int32_t>(after - first_units.begin()) - 1) % stages;
}

}  // namespace terrace
