#pragma once

#include <algorithm>
#include <cmath>

#include "optim/adamw.h"

// The sequence of optim/adamw.h for one element. It is the definition; vector code has the same
// bits.
namespace terrace {

// The fp32 constants of an update.
struct AdamWFactors {
  float gradient_scale, one_minus_beta1, one_minus_beta2;
  float bias_correction_1, bias_correction_2, epsilon;
  float minus_decay;  // -(learning_rate * weight_decay)
  float minus_rate;   // -learning_rate
};

inline AdamWFactors adamw_factors(const AdamWOptions& options, const StepScalars& scalars,
                                  bool decays) {
  return AdamWFactors{
      .gradient_scale = scalars.gradient_scale,
      .one_minus_beta1 = 1.0F - options.beta1,
      .one_minus_beta2 = 1.0F - options.beta2,
      .bias_correction_1 = scalars.bias_correction_1,
      .bias_correction_2 = scalars.bias_correction_2,
      .epsilon = options.epsilon,
      .minus_decay = -(scalars.learning_rate * (decays ? options.weight_decay : 0.0F)),
      .minus_rate = -scalars.learning_rate,
  };
}

struct AdamWElement {
  float p, m, v;
};

inline AdamWElement adamw_element(const AdamWFactors& factors, float gradient,
                                  AdamWElement element) {
  const float g = gradient * factors.gradient_scale;
  const float m = std::fma(factors.one_minus_beta1, g - element.m, element.m);
  const float v = std::fma(factors.one_minus_beta2, g * g - element.v, element.v);
  const float mh = m / factors.bias_correction_1;
  const float d = std::sqrt(v / factors.bias_correction_2) + factors.epsilon;
  const float decayed = std::fma(factors.minus_decay, element.p, element.p);
  return {std::fma(factors.minus_rate, mh / d, decayed), m, v};
}

// adamw_reference() of the elements [begin, end), which all decay or all do not.
void adamw_reference_range(const AdamWUpdate& update, std::int64_t begin, std::int64_t end);

// Calls body(begin, end) for the parts of [begin, end) that decay and that do not.
template <typename Body>
void for_each_decay_range(const AdamWUpdate& update, std::int64_t begin, std::int64_t end,
                          const Body& body) {
  const std::int64_t middle = std::clamp(update.decayed_elements, begin, end);
  if (begin < middle) body(begin, middle);
  if (middle < end) body(middle, end);
}

// Aborts where the views of an update are not n elements of the dtypes that optim/adamw.h names.
void check_adamw_update(const AdamWUpdate& update);

}  // namespace terrace
