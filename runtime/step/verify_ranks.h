#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// What is wrong between the programs of the data-parallel ranks of one run, by rank, at most
// `limit` sentences; nothing if all is well. Every rank must have the same ops at the same places
// of its list, and in collectives the same bytes. Edges may differ, as a rank's shard lies
// elsewhere in a buffer than another's. Then all ranks enter the collectives in one order, and no
// cycle of waiting goes through several of them: in each program every wait is for an earlier op
// of the list (verify() sees to that), and a collective has one place in all lists.
std::vector<std::string> verify_ranks(std::span<const Program> programs, std::size_t limit = 10);

// For ranks that cannot see each other's programs: verify_ranks() finds something wrong with two
// programs if, but for chance, their numbers differ.
std::uint64_t rank_fingerprint(const Program& program);

}  // namespace terrace
