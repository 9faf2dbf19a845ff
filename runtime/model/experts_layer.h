#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/model/layers.h"

namespace terrace {

// Adds the layer of experts (kernels/expert_ops.h) on x [R,C]: the router's logits, the choice, and
// the weighted sum of the chosen experts' results, [R,C].
TensorId experts(const LayerSite& site, TensorId x);

// Returns the content of a buffer between the parts of such a layer (UnitModel::between) that says
// which rows an expert has, as a batch of `rows` rows would have it whose rows are spread evenly
// over the experts. So a part can run without those before it. Empty for a buffer of another name.
std::vector<std::int32_t> even_route(const ExpertOptions& options, std::int64_t rows,
                                     std::string_view name);

}  // namespace terrace
