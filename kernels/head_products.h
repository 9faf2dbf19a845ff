#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// Returns the call for a whole vocabulary that has the same chunks and products as this part.
inline HeadLoss products_of(const HeadSums& op) {
  HeadLoss products;
  products.h = op.h;
  products.weight = op.weight;
  products.target = op.target;
  products.logit_scale = op.logit_scale;
  products.soft_cap = op.soft_cap;
  return products;
}

inline HeadLoss products_of(const HeadPartLoss& op) {
  HeadLoss products;
  products.h = op.h;
  products.weight = op.weight;
  products.dh = op.dh;
  products.dweight = op.dweight;
  products.mode = op.mode;
  products.logit_scale = op.logit_scale;
  products.soft_cap = op.soft_cap;
  return products;
}

}  // namespace terrace
