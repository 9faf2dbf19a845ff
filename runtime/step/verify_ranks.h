#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

// Checks that the ranks of a pipeline stage cannot wait for each other forever.
//
// Ranks that plan for the same budgets have the same ops at the same places of their lists, apart
// from the places of their shards. Ranks with budgets of their own keep and move different states,
// so only their collectives are the same. Without a pipeline that is enough. The argument:
//
// * Put the lists of a rank's prologue, bodies and drain behind each other. An op waits only for
//   ops that stand earlier in this long list: for the ops that its edges name, and for the op
//   before it on its lane. verify() checks this for each program. A collective also waits until all
//   ranks that take part in it have begun it.
// * The collectives are the same on all ranks, in one order over all lanes together. (One order on
//   each lane is not enough: of two collectives on different lanes, each could be first on one
//   rank, and the other could wait for it there.)
// * Suppose that some ranks come to a standstill. Each of them has a first op that has not ended,
//   and all ops before it have ended. If this op needed no other rank, it could run. So it is a
//   collective on each of these ranks. Take the rank whose collective comes first in the common
//   order. Every other rank that takes part in this collective has begun it or has ended it: its
//   own first op that has not ended is this collective or a later one. So the collective can end,
//   which is a contradiction.
// * A step with fewer micro-batches leaves ops out (left_out_ops.h). An op that is left out waits
//   for nothing more, and all ranks that would take part in a collective leave it out together.
//
// A pipeline has messages, too. Its stages receive ahead, so their lists have no common order, and
// verify_stages() follows the edges of one data-parallel rank of each stage. That stands for the
// other ranks only if all ops are the same. So with a pipeline RankMatch::kAllOps is needed.
namespace terrace {

enum class RankMatch : std::uint8_t {
  kCollectives,  // the same collectives in one order: kind, lane, parts, group, chunk and bytes
  kAllOps,       // the same ops at the same places, and in collectives the same bytes
};

// Returns what is wrong between the programs of the ranks of one pipeline stage, given by rank, in
// at most `limit` sentences; nothing if all is well. Edges may differ in any case, because a rank's
// shard lies elsewhere in a buffer than another rank's.
std::vector<std::string> verify_ranks(std::span<const Program> programs,
                                      RankMatch match = RankMatch::kAllOps, std::size_t limit = 10);

// Returns the ops of a program that must be the same on all ranks, a line each, in order. If the
// texts of two programs are equal, verify_ranks() finds nothing wrong with them.
std::string shared_ops(const Program& program, RankMatch match);

// Returns a number that stands for this text, for ranks that cannot see each other's programs.
std::uint64_t rank_fingerprint(const Program& program, RankMatch match = RankMatch::kAllOps);

// Describes the first difference between the texts of two ranks' programs; empty if there is none.
std::string first_difference(const std::string& of_first_rank, const std::string& of_rank,
                             int rank);

}  // namespace terrace
