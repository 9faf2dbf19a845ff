#include "bench/update_forms.h"

#include "base/half.h"

namespace terrace {

std::vector<UpdateForm> update_forms() {
  return {{"adamw_fp32", {.master = MasterForm::kFp32}},
          {"adamw_split", {.master = MasterForm::kSplit}},
          {"adamw_bf16_moments", {.master = MasterForm::kSplit, .slot_form = SlotForm::kBf16}},
          {"adamw_int8_moments", {.master = MasterForm::kSplit, .slot_form = SlotForm::kInt8}}};
}

double update_traffic_bytes(const StateFormat& format, std::int64_t elements) {
  const StateLayout layout = format.layout(elements);
  double state = 0;
  for (const StatePart& part : {layout.slots[0], layout.slots[1], layout.master,
                                layout.exponents[0], layout.exponents[1]}) {
    state += static_cast<double>(part.size_bytes);
  }
  const double parameter = (format.reads_parameter() ? 2.0 : 1.0) * sizeof(Bf16);
  return 2 * state + (sizeof(float) + parameter) * static_cast<double>(elements);
}

}  // namespace terrace
