#pragma once

#include "runtime/step/program.h"

namespace terrace {

// Gives every op the edges that make running the lanes in parallel equal to running the ops one
// after the other in program order: to the last writer of what it reads, and to the last readers
// and writer of what it writes, by place in the arena, so that reuse of space is ordered too. The
// list is taken twice, for edges to the iteration before. Edges that an in-order lane implies are
// left out.
void add_edges(Program& program);

}  // namespace terrace
