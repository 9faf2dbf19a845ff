#pragma once

#include "runtime/model/layers.h"

namespace terrace {

// The layer of experts (kernels/expert_ops.h), of x [R,C]: the router's logits, the choice, and the
// weighted sum of what the chosen experts compute, [R,C].
TensorId experts(const LayerSite& site, TensorId x);

}  // namespace terrace
