#pragma once

#include "runtime/model/layers.h"

namespace terrace {

// Returns the rows of `result` [R,C], which the expert of all rows has made of x [R,C], each times
// the sigmoid of its row of x times ParameterKind::kShare.
TensorId share_of_expert(const LayerSite& site, TensorId x, TensorId result);

}  // namespace terrace
