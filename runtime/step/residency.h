#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/movement.h"
#include "runtime/step/place.h"

namespace terrace {

// The most live bytes of each tier in memory during each task.
using TaskProfile = std::array<std::vector<std::size_t>, kTierCount>;

// Decides what the room in the tiers is used for, with the whole step known in advance: which
// parameters stay in the compute tier from one use to the next (the shortest gaps first, by
// Belady's rule), and how far ahead of its use each load is issued.
class FetchPlanner {
 public:
  // `draft` is the draft of these tasks (runtime/step/movement.h). Borrows everything except the
  // model.
  FetchPlanner(const StepModel& model, const StepPolicy& policy, const std::vector<Task>& tasks,
               const Draft& draft);

  // Returns the plan for these budgets, which limit the bytes that are live at once. Mandatory
  // bytes may exceed them: this function does not refuse that. Loads are issued at most `lookahead`
  // visits early (see EarlyLoads).
  FetchPlan plan(const TierBudgets& budgets, std::int32_t lookahead);

 private:
  // The gap between two uses of a group's parameters. In a step with a period, the gaps at the same
  // position of alike micro-batches form a set. They are neighbours in `gaps_`, and the parameters
  // stay in all of them or in none.
  struct Gap {
    std::int32_t group;
    std::size_t use;
    std::size_t leader;  // the use behind the first gap of the set; without a set its own
    std::int32_t begin;  // the first task that does not need the parameters
    std::int32_t end;    // the next use
    std::size_t bytes;
  };

  // Returns what is live when nothing is kept that need not be and no load is early. It does not
  // depend on the budgets.
  const TaskProfile& live_at_least();
  std::size_t reserve_beside(const Gap& gap, std::int32_t lookahead) const;
  // Adds the gaps between the uses of a group, which are the tasks `uses`.
  void add_gaps(std::int32_t group, const std::vector<std::int32_t>& uses, std::size_t bytes);
  // Decides for each gap whether the parameters stay. Returns whether any do.
  bool choose_stays(const TierBudgets& budgets, std::int32_t lookahead, FetchPlan& plan);
  void fetch_early(const TaskProfile& live, const TierBudgets& budgets, std::int32_t lookahead,
                   FetchPlan& plan) const;
  // Returns a note for each load, before any is issued early.
  std::vector<LoadNote> first_notes(const FetchPlan& plan) const;

  const StepPolicy& policy_;
  const std::vector<Task>& tasks_;
  const Draft& draft_;
  // Per group and use: whether it stays in any case, because the use follows the one before at
  // once.
  std::vector<std::vector<bool>> stays_;
  std::vector<Gap> gaps_;  // the shortest first
  // Among the groups whose parameters live elsewhere: the one with the most bytes of parameters,
  // and the most bytes that another group has.
  struct LargestGroup {
    std::int32_t group = -1;
    std::size_t bytes = 0;
  };
  LargestGroup largest_;
  std::size_t largest_of_others_ = 0;
  std::optional<TaskProfile> live_at_least_;
};

}  // namespace terrace
