#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Returns what is wrong between the programs of the stages of one pipeline, given by stage, for one
// data-parallel rank (verify_ranks() is for the others); nothing if all is well. Every message that
// a stage sends must be met, in order and with the same size and part, by one that another stage
// receives. Then the two ends of a message are taken as one op, and so is the gathering of sums of
// all stages. In the body taken twice, there must be no cycle in the waits of all programs
// together. The lanes of reads and writes are assumed to complete in order, which is more than they
// do, so programs that pass here never wait for themselves.
std::vector<std::string> verify_stages(std::span<const Program* const> programs);
std::vector<std::string> verify_stages(std::span<const Program> programs);

}  // namespace terrace
