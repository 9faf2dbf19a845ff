#pragma once

#include <cmath>

namespace terrace::reference {

// Returns the logit that a product h . weight becomes, given the scale and the soft cap of a head
// op.
template <typename Op, typename W>
W logit_of(const Op& op, W product) {
  const W scaled = static_cast<W>(op.logit_scale) * product;
  if (op.soft_cap <= 0) return scaled;
  const W cap = static_cast<W>(op.soft_cap);
  return cap * std::tanh(scaled / cap);
}

// Returns the derivative of the logit with respect to the product.
template <typename Op, typename W>
W logit_slope(const Op& op, W logit) {
  const W scale = static_cast<W>(op.logit_scale);
  if (op.soft_cap <= 0) return scale;
  const W share = logit / static_cast<W>(op.soft_cap);
  return scale * (1 - share * share);
}

}  // namespace terrace::reference
