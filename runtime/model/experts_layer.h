#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/model/layers.h"

namespace terrace {

// Adds the layer of experts (kernels/expert_ops.h) on x [R,C]: the router's logits, the choice, and
// the weighted sum of the chosen experts' results, [R,C].
TensorId experts(const LayerSite& site, TensorId x);

// Fills a buffer between the parts of such a layer (UnitModel::between), if it has numbers that
// others are found by, as a batch of `rows` rows would whose rows are spread evenly over the
// experts. So a part can run without those before it. A buffer of another name is left as it is.
void fill_route(const ExpertOptions& options, std::int64_t rows, std::string_view name,
                std::span<std::int32_t> out);

}  // namespace terrace
