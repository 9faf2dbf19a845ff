#include "optim/update_rule.h"

namespace terrace {

std::array<float, kMostHyperparameters> fp32_values(const RuleOptions& options) {
  std::array<float, kMostHyperparameters> rounded = {};
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    rounded.at(i) = static_cast<float>(options.values.at(i));
  }
  return rounded;
}

RuleOptions standard_options(const UpdateRule& rule) {
  RuleOptions options;
  for (std::size_t i = 0; i < rule.hyperparameters.size(); ++i) {
    options.values.at(i) = rule.hyperparameters[i].standard;
  }
  return options;
}

void set_state_views(ParameterUpdate& update, const StateFormat& format, std::byte* state,
                     std::int64_t elements) {
  const StateLayout layout = format.layout(elements);
  const auto part_view = [&](const StatePart& part) {
    return view(state + part.begin, part.dtype,
                static_cast<std::int64_t>(part.size_bytes / size_of(part.dtype)));
  };
  for (std::size_t slot = 0; slot < format.slot_count; ++slot) {
    update.slots.at(slot) = part_view(layout.slots.at(slot));
    update.exponents.at(slot) = part_view(layout.exponents.at(slot));
  }
  update.master =
      format.master == MasterForm::kParameter ? update.parameter : part_view(layout.master);
}

ParameterUpdate part_of_update(const ParameterUpdate& update, std::int64_t begin,
                               std::int64_t count) {
  TERRACE_CHECK_EQ(begin % kMomentBlock, 0);
  TERRACE_CHECK_EQ(count % kMomentBlock, 0);
  const auto cut = [&](TensorView& of, std::int64_t elements_of_value) {
    if (of.data == nullptr || of.elements() == 0) return;
    of = view(of.data + static_cast<std::size_t>(begin / elements_of_value) * size_of(of.dtype),
              of.dtype, count / elements_of_value);
  };
  ParameterUpdate part = update;
  for (TensorView* const of : {&part.gradient, &part.master, &part.parameter}) cut(*of, 1);
  for (TensorView& slot : part.slots) cut(slot, 1);
  for (TensorView& exponents : part.exponents) cut(exponents, kMomentBlock);
  return part;
}

}  // namespace terrace
