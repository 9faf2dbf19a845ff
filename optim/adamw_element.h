#pragma once

#include <math.h>

#include <algorithm>

#include "base/half.h"
#include "optim/adamw.h"

// The sequence of optim/adamw.h for one element. It is the definition; vector code has the same
// bits, and so has a GPU, which compiles it without contraction.
namespace terrace {

// The fp32 constants of all updates with some options.
struct AdamWConstants {
  float one_minus_beta1, one_minus_beta2, epsilon, weight_decay;
};

inline AdamWConstants adamw_constants(const RuleOptions& options) {
  const auto [beta1, beta2, epsilon, none] = options.values;
  return {.one_minus_beta1 = 1.0F - beta1,
          .one_minus_beta2 = 1.0F - beta2,
          .epsilon = epsilon,
          .weight_decay = options.weight_decay};
}

// Those of one update.
struct AdamWFactors {
  float gradient_scale, one_minus_beta1, one_minus_beta2;
  float unbias_1, unbias_2;  // 1 / bias correction
  float epsilon;
  float minus_decay;  // -(learning_rate * weight_decay)
  float minus_rate;   // -learning_rate
};

TERRACE_HOST_DEVICE inline AdamWFactors adamw_factors(const AdamWConstants& constants,
                                                      const StepScalars& scalars, bool decays) {
  return AdamWFactors{
      .gradient_scale = scalars.gradient_scale,
      .one_minus_beta1 = constants.one_minus_beta1,
      .one_minus_beta2 = constants.one_minus_beta2,
      .unbias_1 = 1.0F / scalars.of_rule[0],
      .unbias_2 = 1.0F / scalars.of_rule[1],
      .epsilon = constants.epsilon,
      .minus_decay = -(scalars.learning_rate * (decays ? constants.weight_decay : 0.0F)),
      .minus_rate = -scalars.learning_rate,
  };
}

inline AdamWFactors adamw_factors(const ParameterUpdate& update, bool decays) {
  return adamw_factors(adamw_constants(update.options), *update.scalars, decays);
}

struct AdamWElement {
  float p, m, v;
};

TERRACE_HOST_DEVICE inline AdamWElement adamw_element(const AdamWFactors& factors, float gradient,
                                                      AdamWElement element) {
  const float g = gradient * factors.gradient_scale;
  const float m = ::fmaf(factors.one_minus_beta1, g - element.m, element.m);
  const float v = ::fmaf(factors.one_minus_beta2, g * g - element.v, element.v);
  const float mh = m * factors.unbias_1;
  const float d = ::sqrtf(v * factors.unbias_2) + factors.epsilon;
  const float decayed = ::fmaf(factors.minus_decay, element.p, element.p);
  return {::fmaf(factors.minus_rate, mh / d, decayed), m, v};
}

// The exact parameter of an element, whatever form its master has.
inline float exact_parameter(const ParameterUpdate& update, std::int64_t i) {
  if (update.master.dtype == DType::kF32) return update.master.as<float>()[i];
  return join({update.parameter.as<Bf16>()[i], update.master.as<std::int16_t>()[i]});
}

inline void set_exact_parameter(const ParameterUpdate& update, std::int64_t i, float value) {
  if (update.master.dtype == DType::kF32) {
    update.master.as<float>()[i] = value;
  } else {
    update.master.as<std::int16_t>()[i] = split(value).remainder;
  }
  if (update.parameter.dtype == DType::kF32) {
    update.parameter.as<float>()[i] = value;
  } else if (update.parameter.dtype == DType::kF16) {
    update.parameter.as<Fp16>()[i] = to_parameter<Fp16>(value);
  } else {
    update.parameter.as<Bf16>()[i] = to_parameter<Bf16>(value);
  }
}

inline std::uint8_t* codes_of(const TensorView& view) {
  return reinterpret_cast<std::uint8_t*>(view.as<std::byte>());
}

// adamw_reference() of the elements [begin, end): whole blocks where the moments are u8.
void adamw_reference_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end);

// A skipped update of the elements [begin, end).
void keep_state(const ParameterUpdate& update, std::int64_t begin, std::int64_t end);

// Calls body(begin, end) for the parts of [begin, end) that decay and that do not.
template <typename Body>
void for_each_decay_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end,
                          const Body& body) {
  const std::int64_t middle = std::clamp(update.decayed_elements, begin, end);
  if (begin < middle) body(begin, middle);
  if (middle < end) body(middle, end);
}

// Aborts where the views of an update are not n elements of the dtypes that optim/adamw.h names.
void check_adamw_update(const ParameterUpdate& update);

}  // namespace terrace
