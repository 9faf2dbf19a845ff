#pragma once

#include "kernels/cpu/packed_strips.h"

// bf16 matrix products in vector registers, by the instruction of AVX-512 that multiplies pairs of
// bf16 and adds both products to an fp32 sum (VDPBF16PS): twice the operations of fp32 at once.
namespace terrace {

// Whether the processor has the instruction. Where DNNL_MAX_CPU_ISA keeps oneDNN from it, so that
// code for lesser processors is tried, it is not used either.
bool pair_products_usable();

// Takes bf16 and packs it as bf16. Denormal numbers count as zero, as the instruction has it. Only
// where pair_products_usable().
const StripCode& pair_strips();

}  // namespace terrace
