#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/offload.h"
#include "runtime/step/place.h"

namespace terrace {

// The most live bytes of each tier in memory during each task.
using TaskProfile = std::array<std::vector<std::size_t>, kTierCount>;

// Decides, with the whole step known in advance, what room in the tiers is used for: which
// parameters stay in the compute tier from one use to the next (the shortest gaps first, as
// Belady's rule has it), and how far ahead of its use each load is issued, at most policy.lookahead
// units.
class FetchPlanner {
 public:
  // `draft`: of these tasks (runtime/step/offload.h). Borrows all but the model.
  FetchPlanner(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
               const Draft& draft);

  // `budgets` are what may be live at once. Mandatory bytes that exceed them are not this
  // function's to refuse.
  FetchPlan plan(const TierBudgets& budgets);

 private:
  // Between two uses of a unit's parameters.
  struct Gap {
    std::int32_t unit;
    std::size_t use;
    std::int32_t begin;  // the first task that does not need the parameters
    std::int32_t end;    // the next use
    std::size_t bytes;
  };

  // With nothing kept that need not be, and no load early: whatever the budgets.
  const TaskProfile& live_at_least();
  std::size_t reserve_beside(const Gap& gap) const;
  void fetch_early(const TaskProfile& live, const TierBudgets& budgets, FetchPlan& plan) const;

  const StepPolicy& policy_;
  const std::vector<Task>& tasks_;
  const Draft& draft_;
  std::vector<std::vector<bool>> stays_;  // between neighbouring tasks, in any case
  std::vector<Gap> gaps_;                 // the shortest first
  // Of the units that live elsewhere: the one with the most parameters, and the most of another.
  struct LargestUnit {
    std::int32_t unit = -1;
    std::size_t bytes = 0;
  };
  LargestUnit largest_;
  std::size_t largest_of_others_ = 0;
  std::optional<TaskProfile> live_at_least_;
};

}  // namespace terrace
