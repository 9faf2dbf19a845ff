#include "runtime/model/unit_phase.h"

#include <array>
#include <cstddef>

namespace terrace {

std::string_view name_of(UnitPhase phase) {
  constexpr std::array<std::string_view, 12> kNames = {
      "",    "lookup",   "positions", "norm1", "attention", "norm2",
      "mlp", "residual", "norm",      "sums",  "loss",      "norm backward"};
  return kNames.at(static_cast<std::size_t>(phase));
}

}  // namespace terrace
