#pragma once

#include "runtime/step/program.h"

namespace terrace {

// Bytes of the reads and writes that a step can neither begin before it knows the norm of the step
// before nor leave behind its last forward: what updates read where there is no room to read it
// earlier, and what they write where its room is needed.
double bytes_behind_norm(const Program& program);

}  // namespace terrace
