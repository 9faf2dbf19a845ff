#pragma once

#include <cstdint>

#include "runtime/model/layers.h"

namespace terrace {

// The sorted slots of neighbouring experts, as the calls of a group of experts need them.
struct ExpertSlots {
  TensorId order = kNoTensor;    // of all slots
  TensorId offsets = kNoTensor;  // of all experts
  std::int64_t per_row = 0;
  std::int64_t first = 0, count = 0;  // the experts
  double share = 1;                   // of the slots, in the mean

  // Returns where the rows of the experts begin, and where the last ones end.
  TensorView offsets_of(const UnitRun& run) const;
  ExpertRows rows(const UnitRun& run) const;
};

// The biases of a layer's experts. The unit's own group has them, and not the groups of experts, so
// the first part of the forward copies them for the other parts, and the last part of the backward
// writes their gradients, which the other parts leave. Each is kNoTensor where there is no such
// bias, or where it is frozen.
struct ExpertBiases {
  TensorId up = kNoTensor;    // gate | up of each expert, [E,2I]
  TensorId down = kNoTensor;  // [E,C]
  TensorId dup = kNoTensor;   // the gradients, in fp32
  TensorId ddown = kNoTensor;
  Weight gate_weight, up_weight, down_weight;
};

// Adds the copies of the biases; adds nothing where experts have none.
ExpertBiases expert_biases(const LayerSite& site);
// Adds tensors for the gradients, in the backward.
void add_bias_gradients(const LayerSite& site, ExpertBiases& biases);
// Adds the calls that write the gradients to where the unit's gradients are.
void write_bias_gradients(const LayerSite& site, const ExpertBiases& biases);

// Make the calls of a group. `biases` and `dbiases` have a row for each expert of the layer.
// y += the bias of each slot's expert; y is sorted.
UnitCall add_bias_call(const ExpertSlots& slots, TensorId biases, TensorId y);
// The gradient of a group's biases from dy. `weight`, if it is not kNoTensor, has the weights of
// the slots; dy is then by row, and else sorted.
struct BiasGradient {
  TensorId dy = kNoTensor;
  TensorId weight = kNoTensor;
  TensorId dbiases = kNoTensor;
};
UnitCall bias_gradient_call(const ExpertSlots& slots, const BiasGradient& gradient);
// Adds the share of the biases to the gradients of the slots' weights, from dy by row.
UnitCall bias_share_call(const ExpertSlots& slots, TensorId dy, TensorId biases, TensorId dweight);

}  // namespace terrace
