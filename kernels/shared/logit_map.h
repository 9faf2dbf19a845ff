#pragma once

#include <math.h>

#include "kernels/kernel_table.h"
#include "kernels/shared/element.h"

namespace terrace::shared {

// How a product h . weight becomes a logit: it is multiplied by scale, and with a cap above 0 the
// result x then becomes cap * tanh(x / cap).
struct LogitMap {
  float scale = 1.0F;
  float cap = 0.0F;

  bool is_identity() const { return scale == 1.0F && cap <= 0.0F; }

  TERRACE_KERNEL float logit(float product) const {
    const float scaled = scale * product;
    return cap > 0.0F ? cap * ::tanhf(scaled / cap) : scaled;
  }
  // Returns the derivative of a logit with respect to its product.
  TERRACE_KERNEL float slope(float logit) const {
    const float share = cap > 0.0F ? logit / cap : 0.0F;
    return scale * (1.0F - share * share);
  }
};

template <typename Op>
LogitMap logit_map(const Op& op) {
  return {op.logit_scale, op.soft_cap};
}

// Calls body(std::bool_constant), which tells whether kernels have to map logits. Kernels are
// compiled for both cases, so that plain ones do no extra work.
template <typename Body>
void with_mapping(const LogitMap& map, const Body& body) {
  if (map.is_identity()) return body(std::false_type());
  body(std::true_type());
}

}  // namespace terrace::shared
