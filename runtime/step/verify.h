#pragma once

#include <string>
#include <vector>

#include "runtime/step/place.h"
#include "runtime/step/program.h"

namespace terrace {

// Checks a program without trusting the passes that made it. Returns what is wrong, one sentence
// each, nothing if all is well (it looks for at most `limit`):
//  * Edges of distance 0 point to earlier ops, so there is no cycle.
//  * Every read has a writer before it or is of a persistent buffer, and nothing else wrote to the
//    place between the two: no two live buffers overlap. The body is taken twice for this check, so
//    the body leaves at its exit everything that it needs at its entry.
//  * Any two ops that touch the same place, one of them writing, are ordered by edges and lanes
//    alone. This is checked by reachability in the body taken twice, never by position in the list.
//  * The values that an op reads are of the step that it needs (runtime/step/step_values.h). A
//    deferred op finds the scalars and gradients of its own step. A forward finds the parameters
//    that the step before has left, whatever was copied on the way.
//  * No buffer reaches beyond its arena.
// A program with repeated ops is unrolled to three repetitions, with edges, and then checked. Later
// repetitions begin with the same memory contents as the third, so they are right if it is. The
// last one is only checked for bytes beyond the buffers that repetitions go through.
std::vector<std::string> verify(const Program& program, std::size_t limit = 10);

// Returns the tiers whose packed peak is over budget.
std::vector<Tier> tiers_over_budget(const Program& program, const TierBudgets& budgets);

}  // namespace terrace
