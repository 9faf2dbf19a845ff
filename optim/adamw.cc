#include "optim/adamw.h"

#include "base/check.h"
#include "base/half.h"
#include "optim/adamw_element.h"

namespace terrace {

void check_adamw_update(const AdamWUpdate& update) {
  const std::int64_t elements = update.gradient.elements();
  TERRACE_CHECK(update.scalars != nullptr);
  for (const TensorView* view :
       {&update.gradient, &update.master, &update.moment1, &update.moment2}) {
    TERRACE_CHECK(view->dtype == DType::kF32);
    TERRACE_CHECK_EQ(view->elements(), elements);
  }
  TERRACE_CHECK(update.parameter.dtype == DType::kF32 || update.parameter.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(update.parameter.elements(), elements);
}

void adamw_reference(const AdamWUpdate& update) {
  check_adamw_update(update);
  const AdamWFactors factors = adamw_factors(update.options, *update.scalars);
  const float* gradient = update.gradient.as<const float>();
  float* master = update.master.as<float>();
  float* moment1 = update.moment1.as<float>();
  float* moment2 = update.moment2.as<float>();
  for (std::int64_t i = 0; i < update.gradient.elements(); ++i) {
    const AdamWElement next =
        adamw_element(factors, gradient[i], {master[i], moment1[i], moment2[i]});
    master[i] = next.p;
    moment1[i] = next.m;
    moment2[i] = next.v;
    if (update.parameter.dtype == DType::kBF16) {
      update.parameter.as<Bf16>()[i] = to_bf16_ties_away(next.p);
    } else {
      update.parameter.as<float>()[i] = next.p;
    }
  }
}

}  // namespace terrace
