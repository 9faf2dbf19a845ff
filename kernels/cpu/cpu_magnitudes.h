#pragma once

#include "kernels/kernel_table.h"

namespace terrace {

// These give the bits of the reference. Blocks of rows with about kElementBlock elements are shared
// by the workers.
void cpu_magnitude_factors(const KernelContext& context, const MagnitudeFactors& op);
void cpu_scale_columns(const KernelContext& context, const ScaleColumns& op);

}  // namespace terrace
