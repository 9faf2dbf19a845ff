#pragma once

#include "runtime/model/layers.h"

// The figures and the losses of the router of a layer of experts (kernels/expert_ops.h).
namespace terrace {

// Adds the call that writes the sums of the layer's router, of which the step's figures and losses
// are made. It reads the router's logits [R,E] and the numbers of the experts that each row has
// chosen, i32 [R,k]. Only a training step has a buffer for the sums; elsewhere the call does
// nothing.
void leave_router_sums(const LayerSite& site, TensorId logits, TensorId index);

// The gradient that a router's losses add to the gradient of its logits.
struct RouterLossGradient {
  TensorId slopes = kNoTensor;   // kNoTensor: the model has no such loss
  TensorId targets = kNoTensor;  // kNoTensor: no row is padding
};
// Adds, in the backward, the call that computes the slopes of the router's losses.
RouterLossGradient router_loss_gradient(const LayerSite& site);

}  // namespace terrace
