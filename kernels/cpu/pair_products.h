#pragma once

#include "kernels/cpu/packed_strips.h"

// bf16 matrix products in vector registers, using the AVX-512 instruction that multiplies pairs of
// bf16 and adds both products to an fp32 sum (VDPBF16PS): it does twice as many operations at once
// as fp32.
namespace terrace {

// Returns whether the instruction may be used: the processor has it, and DNNL_MAX_CPU_ISA does not
// keep oneDNN from it, as when code for lesser processors is tried.
bool pair_products_usable();

// Returns the code that takes bf16 and packs it as bf16. Denormal numbers count as zero, as they do
// in the instruction. Call it only where pair_products_usable().
const StripCode& pair_strips();

}  // namespace terrace
