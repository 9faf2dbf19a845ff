#pragma once

#include <cstdint>
#include <string>

#include "parallel/communicator.h"
#include "runtime/step/lane_executor.h"

namespace terrace {

// The data-parallel ranks of a run as one of them sees them: two communicators of the same group,
// so that a step's collectives and those between steps need no common order. Null: one rank.
struct RankCommunicators {
  Communicator* steps = nullptr;
  Communicator* control = nullptr;
};

// What ranks agree on between steps. All ranks do the same calls in the same order; with one rank
// each returns what it was given. Throws CommError.
class RankGroup {
 public:
  explicit RankGroup(const RankCommunicators& ranks) : ranks_(ranks) {}

  std::int32_t count() const { return ranks_.control == nullptr ? 1 : ranks_.control->size(); }
  std::int32_t rank() const { return ranks_.control == nullptr ? 0 : ranks_.control->rank(); }
  // The one that writes files and speaks to the user.
  bool is_first() const { return rank() == 0; }
  Communicator* steps() const { return ranks_.steps; }
  Communicator* control() const { return ranks_.control; }

  // Whether any rank says so.
  bool any(bool value) const;
  std::int64_t smallest(std::int64_t value) const;
  // Whether all ranks give the same.
  bool is_same(std::uint64_t value) const;
  // Added in rank order.
  double sum(double value) const;
  // The first rank's.
  std::string text_of_first(const std::string& text) const;
  // Bytes of all ranks; of busy times the longest.
  void combine(RunTotals& totals) const;

 private:
  RankCommunicators ranks_;
};

}  // namespace terrace
