#include "optim/adamw.h"

#include "base/check.h"
#include "base/half.h"
#include "optim/adamw_element.h"

namespace terrace {

void check_adamw_update(const AdamWUpdate& update) {
  const std::int64_t elements = update.gradient.elements();
  TERRACE_CHECK(update.scalars != nullptr);
  for (const TensorView* view :
       {&update.master, &update.moment1, &update.moment2, &update.parameter}) {
    TERRACE_CHECK_EQ(view->elements(), elements);
  }
  for (const TensorView* view : {&update.gradient, &update.moment1, &update.moment2}) {
    TERRACE_CHECK(view->dtype == DType::kF32);
  }
  const bool split = update.master.dtype == DType::kI16;
  TERRACE_CHECK(split || update.master.dtype == DType::kF32);
  TERRACE_CHECK(update.parameter.dtype == DType::kBF16 ||
                (!split && update.parameter.dtype == DType::kF32));
}

void set_state_views(AdamWUpdate& update, const StateFormat& format, std::byte* state,
                     std::int64_t elements) {
  const StateLayout layout = format.layout(elements);
  const auto part_view = [&](const StatePart& part) {
    return view(state + part.begin, part.dtype, elements);
  };
  update.moment1 = part_view(layout.moment1);
  update.moment2 = part_view(layout.moment2);
  update.master =
      format.master == MasterForm::kParameter ? update.parameter : part_view(layout.master);
}

namespace {

float master_of(const AdamWUpdate& update, std::int64_t i) {
  if (update.master.dtype == DType::kF32) return update.master.as<float>()[i];
  return join({update.parameter.as<Bf16>()[i], update.master.as<std::int16_t>()[i]});
}

void set_parameter(const AdamWUpdate& update, std::int64_t i, float value) {
  if (update.master.dtype == DType::kF32) {
    update.master.as<float>()[i] = value;
  } else {
    update.master.as<std::int16_t>()[i] = split(value).remainder;
  }
  if (update.parameter.dtype == DType::kF32) {
    update.parameter.as<float>()[i] = value;
  } else {
    update.parameter.as<Bf16>()[i] = to_bf16_ties_away(value);
  }
}

}  // namespace

void adamw_reference_range(const AdamWUpdate& update, std::int64_t begin, std::int64_t end) {
  const AdamWFactors factors =
      adamw_factors(update.options, *update.scalars, begin < update.decayed_elements);
  const float* gradient = update.gradient.as<const float>();
  float* moment1 = update.moment1.as<float>();
  float* moment2 = update.moment2.as<float>();
  for (std::int64_t i = begin; i < end; ++i) {
    const AdamWElement next =
        adamw_element(factors, gradient[i], {master_of(update, i), moment1[i], moment2[i]});
    moment1[i] = next.m;
    moment2[i] = next.v;
    set_parameter(update, i, next.p);
  }
}

void adamw_reference(const AdamWUpdate& update) {
  check_adamw_update(update);
  for_each_decay_range(
      update, 0, update.gradient.elements(),
      [&](std::int64_t begin, std::int64_t end) { adamw_reference_range(update, begin, end); });
}

}  // namespace terrace
