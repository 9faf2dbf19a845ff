#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// An op in the program's list taken twice, one copy behind the other. The value is the op's index,
// plus the number of ops in the second copy.
using Moment = std::int64_t;

// Answers whether one moment always ends before another starts, by edges and lanes alone. Takes the
// edges as they are, but leaves out edges that do not point to an earlier moment.
//
// Lanes that complete in order are chains. So for each of these lanes, a moment needs to know only
// two moments: the last one that has ended when it starts (a vector clock: Fidge 1988, Mattern
// 1989), and the first one that starts after it has ended. A path of several edges that touches no
// such lane is searched for, once for each `second`. The passes leave no such path, because an op
// has an edge to every read or write that it waits for. So the work is at most (moments x lanes +
// edges), and for every moment that is asked about such a path one search through the edges among
// reads and writes.
class HappensBefore {
 public:
  // Borrows the program, which must not change.
  explicit HappensBefore(const Program& program);

  bool operator()(Moment first, Moment second);

 private:
  using PerLane = std::array<Moment, kLaneCount>;

  const Op& op(Moment moment) const { return program_.ops[moment % count_]; }
  bool in_order(Moment moment) const { return completes_in_order(op(moment).lane); }

  // Calls visit(earlier) for every moment that `m` waits for by an edge.
  template <typename Visit>
  void for_each_wait(Moment m, Visit visit) const;
  void fill_ended();
  void fill_next();
  bool waits_for(Moment second, Moment first) const;  // by an edge
  bool meets_on_a_lane(Moment first, Moment second) const;
  void search_from(Moment second);

  const Program& program_;
  Moment count_;
  std::vector<PerLane> ended_;  // by moment and lane: the last that has ended when it starts, or -1
  std::vector<PerLane> next_;   // by moment and lane: the first that starts after its end
  // The last search: the moment that it was for, and its number. In found_by_, the moments that it
  // found have this number.
  Moment searched_from_ = -1;
  std::int64_t searches_ = 0;
  std::vector<std::int64_t> found_by_;
  std::vector<Moment> to_visit_;
};

}  // namespace terrace
