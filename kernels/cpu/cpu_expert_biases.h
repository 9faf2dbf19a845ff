#pragma once

#include "kernels/kernel_table.h"

// The biases of experts: their addition, their gradient, and their share in the gradient of the
// weights of slots. Highway with run-time dispatch. Sums have an order that the rows of an expert
// alone decide.
namespace terrace {

void cpu_add_expert_bias(const KernelContext& context, const AddExpertBias& op);
void cpu_expert_bias_gradient(const KernelContext& context, const ExpertBiasGradient& op);
void cpu_add_bias_share(const KernelContext& context, const AddBiasShare& op);

}  // namespace terrace
