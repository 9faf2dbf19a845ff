#pragma once

#include "runtime/step/program.h"

namespace terrace {

// Returns the bytes of the reads and writes that a step can neither begin before it knows the norm
// of the step before, nor leave until after its last forward. They are the reads of updates that
// there is no room for earlier, and the writes of updates whose room is needed.
double bytes_behind_norm(const Program& program);

}  // namespace terrace
