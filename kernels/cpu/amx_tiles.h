#pragma once

#include "kernels/cpu/packed_strips.h"

// bf16 matrix products in the tile registers of AMX.
namespace terrace {

// Whether the processor has tile registers for bf16 and the system lets this process use them; the
// first call asks for leave.
bool amx_usable();

// Takes bf16 and packs it as bf16. Only where amx_usable().
const StripCode& amx_strips();

}  // namespace terrace
