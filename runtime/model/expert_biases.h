#pragma once

#include <cstdint>

#include "runtime/model/layers.h"

namespace terrace {

// The sorted slots of neighbouring experts, as the calls of a group of experts need them.
struct ExpertSlots {
  TensorId order = kNoTensor;    // of all slots of the layer
  TensorId offsets = kNoTensor;  // where the slots of each expert of the layer begin
  std::int64_t per_row = 0;      // how many experts a row has
  std::int64_t first = 0;        // the number of the group's first expert
  std::int64_t count = 0;        // how many experts the group has
  double share = 1;              // how much of all slots the group has if experts are used evenly

  // Returns where the rows of the experts begin, and where the last ones end.
  TensorView offsets_of(const UnitRun& run) const;
  ExpertRows rows(const UnitRun& run) const;
};

// The biases of a layer's experts. They are in the unit's own group of parameters, not in the
// groups of experts. So the first part of the forward copies them for the parts that compute the
// experts. Those parts leave the gradients of the biases in tensors, from which the last part of
// the backward writes them to the unit's own group. A tensor is kNoTensor where there is no such
// bias, and a gradient also where the bias is frozen.
struct ExpertBiases {
  TensorId up = kNoTensor;     // gate | up of each expert, [E,2I]
  TensorId down = kNoTensor;   // [E,C]
  TensorId dup = kNoTensor;    // the gradient of `up`, in fp32
  TensorId ddown = kNoTensor;  // likewise
  Weight gate_weight, up_weight, down_weight;
};

// Adds the copies of the biases; adds nothing where experts have none.
ExpertBiases expert_biases(const LayerSite& site);
// Adds tensors for the gradients, in the backward.
void add_bias_gradients(const LayerSite& site, ExpertBiases& biases);
// Adds the calls that write the gradients to where the unit's gradients are.
void write_bias_gradients(const LayerSite& site, const ExpertBiases& biases);

// Each of these makes a call for a group of experts. `biases` and `dbiases` have a row for each
// expert of the layer.
//
// y += the bias of each slot's expert; the rows of y are sorted by expert.
UnitCall add_bias_call(const ExpertSlots& slots, TensorId biases, TensorId y);
// The gradient of a group's biases, from the gradient dy of the sums with them. If `weight` is
// given, it has the weights of the slots, and dy has a row for each row of the batch. Otherwise dy
// has a row for each slot, sorted by expert.
struct BiasGradient {
  TensorId dy = kNoTensor;
  TensorId weight = kNoTensor;
  TensorId dbiases = kNoTensor;
};
UnitCall bias_gradient_call(const ExpertSlots& slots, const BiasGradient& gradient);
// Adds what the biases contribute to the gradients of the slots' weights. dy has a row for each row
// of the batch.
UnitCall bias_share_call(const ExpertSlots& slots, TensorId dy, TensorId biases, TensorId dweight);

}  // namespace terrace
