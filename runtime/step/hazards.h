#pragma once

#include "runtime/step/program.h"

namespace terrace {

// Gives every op its edges. They make running the lanes in parallel equal to running the ops one
// after the other in program order. An op waits for the last writer of each place that it reads,
// and for the last readers and the last writer of each place that it writes. A place is a range of
// the arena, so reuse of space is ordered too. The list is taken twice, which yields the edges to
// the iteration before. Edges that an in-order lane implies are left out.
// The program must not have repeated ops: UnrolledProgram lists them and gives them edges.
void add_edges(Program& program);

}  // namespace terrace
