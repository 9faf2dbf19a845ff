#pragma once

#include "runtime/model/layers.h"

namespace terrace {

// Adds the expert that all rows of x [R,C] have, besides the chosen ones: a gated feed-forward of
// its own size. Returns its result, [R,C], times each row's share where the options say so.
TensorId shared_expert(const LayerSite& site, TensorId x);

}  // namespace terrace
