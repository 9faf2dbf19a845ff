#pragma once

#include "kernels/kernel_table.h"

// Codes for the way between ranks, with the bits of the reference. Blocks of kElementBlock numbers
// are shared by the workers.
namespace terrace {

void cpu_encode_wire(const KernelContext& context, const EncodeWire& op);
void cpu_decode_wire(const KernelContext& context, const DecodeWire& op);
void cpu_sum_wire(const KernelContext& context, const SumWire& op);

}  // namespace terrace
