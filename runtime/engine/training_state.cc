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
  const auto read = [&](StateField field, std::int32_t group, std::int64_t begin,
                        std::span<float> out) {
    const ParameterGroup& of = units_.model().groups.at(static_cast<std::size_t>(group));
    source.read(field, layout_.at(static_cast<std::size_t>(of.unit)), of.first_element + begin,
                out);
  };
  units_.fill({read}, workers, progress);
}

void TrainingState::read(StateField field, std::int32_t unit, std::int64_t begin,
                         std::span<float> out) {
  const StepModel& model = units_.model();
  while (!out.empty()) {
    const std::int32_t group = model.group_at(unit, begin);
    const ParameterGroup& of = model.groups.at(static_cast<std::size_t>(group));
    const std::int64_t first = begin - of.first_element;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(std::ssize(out), of.padded_elements - first));
    units_.read(field, group, first, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

}  // namespace terrace
