#pragma once

#include "runtime/model/layers.h"

namespace terrace {

// Returns the shared expert's result [R,C] with each row multiplied by one number: the sigmoid of
// the product of the row of x [R,C] with ParameterKind::kShare [1,C]. The
// shared expert has made `result` of x.
TensorId gated_by_share(const LayerSite& site, TensorId x, TensorId result);

}  // namespace terrace
