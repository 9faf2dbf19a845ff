#include "runtime/step/happens_before.h"

#include <algorithm>
#include <limits>

namespace terrace {
namespace {

constexpr Moment kNever = std::numeric_limits<Moment>::max();

std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace

HappensBefore::HappensBefore(const Program& program)
    : program_(program),
      count_(static_cast<Moment>(program.ops.size())),
      ended_(static_cast<std::size_t>(2 * count_)),
      next_(static_cast<std::size_t>(2 * count_)),
      found_by_(static_cast<std::size_t>(2 * count_), 0) {
  fill_ended();
  fill_next();
}

template <typename Visit>
void HappensBefore::for_each_wait(Moment m, Visit visit) const {
  for (const Dependency& edge : op(m).after) {
    if (m < count_ && edge.distance == 1) continue;  // to a step before the first copy
    const Moment earlier = edge.op + (m >= count_ && edge.distance == 0 ? count_ : 0);
    if (earlier >= 0 && earlier < m) visit(earlier);
  }
}

void HappensBefore::fill_ended() {
  PerLane last;
  last.fill(-1);
  for (Moment m = 0; m < 2 * count_; ++m) {
    PerLane& ended = ended_[m];
    ended.fill(-1);
    const auto take = [&](Moment before) {
      for (std::size_t l = 0; l < kLaneCount; ++l) ended[l] = std::max(ended[l], ended_[before][l]);
      if (!in_order(before)) return;
      Moment& of_lane = ended.at(index_of(op(before).lane));
      of_lane = std::max(of_lane, before);
    };
    Moment& before = last.at(index_of(op(m).lane));
    if (in_order(m) && before >= 0) take(before);
    before = m;
    for_each_wait(m, take);
  }
}

// Goes from the end to the front, so that the moments that wait for a moment are known before it is
// looked at.
void HappensBefore::fill_next() {
  for (PerLane& next : next_) next.fill(kNever);
  PerLane following;
  following.fill(kNever);
  for (Moment m = 2 * count_ - 1; m >= 0; --m) {
    const auto give = [&](Moment earlier) {
      for (std::size_t l = 0; l < kLaneCount; ++l) {
        next_[earlier][l] = std::min(next_[earlier][l], next_[m][l]);
      }
      if (!in_order(m)) return;
      Moment& of_lane = next_[earlier].at(index_of(op(m).lane));
      of_lane = std::min(of_lane, m);
    };
    if (in_order(m)) {
      Moment& after = following.at(index_of(op(m).lane));
      if (after != kNever) {
        for (std::size_t l = 0; l < kLaneCount; ++l) {
          next_[m][l] = std::min(next_[m][l], next_[after][l]);
        }
        next_[m].at(index_of(op(m).lane)) = after;
      }
      after = m;
    }
    for_each_wait(m, give);
  }
}

bool HappensBefore::operator()(Moment first, Moment second) {
  const Lane lane = op(first).lane;
  if (completes_in_order(lane)) return ended_[second][index_of(lane)] >= first;
  if (waits_for(second, first) || meets_on_a_lane(first, second)) return true;
  if (searched_from_ != second) search_from(second);
  return found_by_[first] == searches_;
}

bool HappensBefore::waits_for(Moment second, Moment first) const {
  bool waits = false;
  for_each_wait(second, [&](Moment earlier) { waits = waits || earlier == first; });
  return waits;
}

// Returns whether a lane that completes in order has a moment between the two: it starts after
// `first` has ended, and it has ended when `second` starts or is `second` itself.
bool HappensBefore::meets_on_a_lane(Moment first, Moment second) const {
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    if (next_[first][l] <= ended_[second][l]) return true;
  }
  return in_order(second) && next_[first][index_of(op(second).lane)] <= second;
}

// Searches backward through reads and writes alone. A path through another lane need not be
// searched: meets_on_a_lane() finds it.
void HappensBefore::search_from(Moment second) {
  searched_from_ = second;
  ++searches_;
  to_visit_.assign(1, second);
  while (!to_visit_.empty()) {
    const Moment m = to_visit_.back();
    to_visit_.pop_back();
    for_each_wait(m, [&](Moment earlier) {
      if (in_order(earlier) || found_by_[earlier] == searches_) return;
      found_by_[earlier] = searches_;
      to_visit_.push_back(earlier);
    });
  }
}

}  // namespace terrace
