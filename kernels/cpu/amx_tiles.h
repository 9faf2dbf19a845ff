#pragma once

#include "kernels/cpu/packed_strips.h"

// bf16 matrix products in the tile registers of AMX.
namespace terrace {

// Returns whether the processor has tile registers for bf16 and the system lets this process use
// them; the first call asks the system for permission.
bool amx_usable();

// Returns the code that takes bf16 and packs it as bf16. Call it only where amx_usable().
const StripCode& amx_strips();

}  // namespace terrace
