#include "runtime/checkpoint/weight_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/half_arrays.h"

namespace terrace {

void WeightState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                       std::span<float> out) const {
  if (field != StateField::kMaster) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  for_each_tensor_part(
      unit, begin, out,
      [this](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        directory_.read(tensor, first, part);
        if (all_finite(part)) return;
        throw CorruptData(
            fmt::format("the weights of {} have values that are not finite", tensor.stored_name),
            "download them again, or start from other weights");
      });
}

}  // namespace terrace
