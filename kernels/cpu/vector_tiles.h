#pragma once

#include "kernels/cpu/packed_strips.h"

// fp32 matrix products in vector registers, on any processor. Highway with run-time dispatch.
namespace terrace {

// Returns the code that takes fp32 or bf16 and packs it as fp32. Instruction sets without a fused
// multiplication and addition give other bits.
const StripCode& vector_strips();

}  // namespace terrace
