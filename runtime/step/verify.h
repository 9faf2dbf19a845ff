#pragma once

#include <string>
#include <vector>

#include "runtime/step/place.h"
#include "runtime/step/program.h"

namespace terrace {

// Checks a program without trusting the passes that made it; returns what is wrong, one sentence
// each, nothing if all is well (at most `limit` are looked for):
//  * edges of distance 0 point to earlier ops, so there is no cycle;
//  * every read has a writer before it, or is of a persistent buffer, and between the two nobody
//  else
//    wrote to the place: no two live buffers overlap. Taken over the body twice, so that what the
//    body needs at entry is what it leaves at exit;
//  * any two ops that touch the same place, one of them writing, are ordered by edges and lanes
//  alone:
//    by reachability in the body taken twice, never by position in the list;
//  * what an op reads is of the step that the op needs it of (runtime/step/step_values.h): a
//    deferred op finds the scalars and gradients of its own step, a forward the parameters that the
//    step before has left, whatever was copied on the way;
//  * no buffer reaches beyond its arena.
std::vector<std::string> verify(const Program& program, std::size_t limit = 10);

// The tiers whose packed peak is over budget.
std::vector<Tier> tiers_over_budget(const Program& program, const TierBudgets& budgets);

}  // namespace terrace
