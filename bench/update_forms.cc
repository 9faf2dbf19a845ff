#include "bench/update_forms.h"

#include "base/half.h"
#include "optim/update_rules.h"

namespace terrace {

std::vector<UpdateForm> update_forms() {
  std::vector<UpdateForm> forms;
  for (const UpdateRule* rule : update_rules()) {
    const auto add = [&](const char* suffix, MasterForm master, SlotForm slots) {
      forms.push_back(
          {std::string(rule->name) + suffix, rule, {master, slots, rule->slots.size()}});
    };
    add("_fp32", MasterForm::kFp32, SlotForm::kFp32);
    add("_split", MasterForm::kSplit, SlotForm::kFp32);
    add("_bf16_moments", MasterForm::kSplit, SlotForm::kBf16);
    add("_int8_moments", MasterForm::kSplit, SlotForm::kInt8);
  }
  return forms;
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
