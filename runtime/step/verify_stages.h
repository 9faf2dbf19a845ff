#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// What is wrong between the programs of the stages of one pipeline, by stage (of one data-parallel
// rank; verify_ranks() is for the others): every message that a stage sends must be met, in order
// and of the same size and part, by what another receives; and with the two ends of a message taken
// as one op, and the gathering of sums as one of all stages, no cycle may be left in the waiting of
// all programs together, in the body taken twice. Lanes of reads and writes are taken to complete
// in order, which is more than they do: what passes here never waits for itself. Nothing if all is
// well.
std::vector<std::string> verify_stages(std::span<const Program* const> programs);
std::vector<std::string> verify_stages(std::span<const Program> programs);

}  // namespace terrace
