#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/model/layers.h"

namespace terrace {

// Adds the layer of experts (kernels/expert_ops.h) on x [R,C]: the router's logits, the choice, and
// the weighted sum of the chosen experts' results, [R,C].
TensorId experts(const LayerSite& site, TensorId x);

// The name of the buffer between the parts of such a layer that has, as i32 [E+1], where each
// expert's rows begin, and behind these the number of all slots. An expert without rows may be left
// out: its part writes nothing.
inline constexpr std::string_view kRowsOfExperts = "rows of experts";

// Returns the content of a buffer between the parts of such a layer (UnitModel::between) that says
// which rows an expert has, as a batch of `rows` rows would have it whose rows are spread evenly
// over the experts. So a part can run without those before it. Empty for a buffer of another name.
std::vector<std::int32_t> even_route(const ExpertOptions& options, std::int64_t rows,
                                     std::string_view name);

}  // namespace terrace
