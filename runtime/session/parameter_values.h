#pragma once

#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

// The bf16 or fp16 values of a parameter beside the fp32 master of one of its chunks, which is
// `chunk.elements` long.
namespace terrace {

// A master that begins with the parameter's values.
void read_parameter(const SessionTensor& tensor, const StateChunk& chunk, float* master);
// Writes the parameter as an update would, from its master.
void round_parameter(const SessionTensor& tensor, const StateChunk& chunk, const float* master);

}  // namespace terrace
