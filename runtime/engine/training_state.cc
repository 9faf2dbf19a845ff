#include "runtime/engine/training_state.h"

#include <algorithm>

#include "runtime/model/parameter_init.h"

namespace terrace {

void RandomState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                       std::span<float> out) const {
  if (field != StateField::kMaster) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  for_each_tensor_part(
      unit, begin, out,
      [this](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        init_parameter(tensor, seed_, first, part);
      });
}

void TrainingState::fill_from(const StateSource& source, WorkerArena& workers,
                              FillProgress progress) {
  const auto read = [&](StateField field, std::int32_t unit, std::int64_t begin,
                        std::span<float> out) {
    source.read(field, layout_.at(static_cast<std::size_t>(unit)), begin, out);
  };
  units_.fill({read}, workers, progress);
}

}  // namespace terrace
