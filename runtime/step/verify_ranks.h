#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Returns what is wrong between the programs of the data-parallel ranks of one run, given by rank,
// in at most `limit` sentences; nothing if all is well. Every rank must have the same ops at the
// same places of its list, and in collectives the same bytes. Edges may differ, because a rank's
// shard lies elsewhere in a buffer than another rank's. Then all ranks enter the collectives in one
// order, and no cycle of waiting goes through several programs: in each program every wait is for
// an earlier op of the list (verify() checks that), and a collective has the same place in all
// lists.
std::vector<std::string> verify_ranks(std::span<const Program> programs, std::size_t limit = 10);

// Returns a number that stands for a program, for ranks that cannot see each other's programs. If
// two programs have different numbers, verify_ranks() finds something wrong with them. If they have
// the same number, it finds nothing, unless the numbers are equal by chance.
std::uint64_t rank_fingerprint(const Program& program);

}  // namespace terrace
