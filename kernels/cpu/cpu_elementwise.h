#pragma once

#include "kernels/kernel_table.h"

// Elementwise ops: one fp32 operation (two, where an addition is scaled) and one rounding per
// element, so the bits are the same as the reference's. Blocks of kElementBlock elements are shared
// by the workers.
namespace terrace {

void cpu_add(const KernelContext& context, const Add& op);
void cpu_scale(const KernelContext& context, const Scale& op);
void cpu_scale_rows(const KernelContext& context, const ScaleRows& op);
void cpu_accumulate_gradient(const KernelContext& context, const AccumulateGradient& op);
void cpu_round_gradient(const KernelContext& context, const RoundGradient& op);
void cpu_fill_zero(const KernelContext& context, const FillZero& op);
void cpu_cast_parameters(const KernelContext& context, const CastParameters& op);

}  // namespace terrace
