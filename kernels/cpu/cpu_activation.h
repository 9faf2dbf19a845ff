#pragma once

#include "kernels/kernel_table.h"

// Gated activations and GELU in fp32 with one rounding to the compute type. Both use the logistic
// function, built on cpu_exp.inl: relative error of y at most 1e-6 in fp32 where the gate is above
// -80, absolute error at most 1e-33 below. Instruction sets give different last bits; the number of
// workers changes nothing.
namespace terrace {

void cpu_glu_forward(const KernelContext& context, const GluForward& op);
void cpu_glu_backward(const KernelContext& context, const GluBackward& op);
void cpu_gelu_forward(const KernelContext& context, const GeluForward& op);
void cpu_gelu_backward(const KernelContext& context, const GeluBackward& op);

}  // namespace terrace
