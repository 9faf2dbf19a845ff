#pragma once

#include "runtime/model/layers.h"

namespace terrace {

// Computes the layer of experts (kernels/expert_ops.h) of x [R,C]: the router's logits, the choice
// of experts, and the weighted sum of their results, which it returns, [R,C].
TensorId experts(const LayerSite& site, TensorId x);

}  // namespace terrace
