#include "runtime/step/residency.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// Returns the most live bytes during each task, with the loads issued as the plan says.
TaskProfile live_in_tasks(const Draft& draft, const FetchPlan& plan, std::size_t tasks) {
  const LinearDraft linear = linearize(draft, static_cast<std::int32_t>(tasks), plan);
  TaskProfile most;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    auto& used = most.at(static_cast<std::size_t>(tier));
    used.assign(tasks, 0);
    const std::vector<std::size_t> profile = live_profile(draft, linear, tier);
    for (std::size_t i = 0; i < profile.size(); ++i) {
      std::size_t& task = used.at(linear.tasks[i]);
      task = std::max(task, profile[i]);
    }
  }
  return most;
}

// The bytes that may still be added in each tier during each task.
class Room {
 public:
  Room(TaskProfile used, const TierBudgets& budgets) : budgets_(budgets), used_(std::move(used)) {}

  // Returns whether `bytes` more fit in every task of [begin, end) and leave `reserve`. Tasks below
  // 0 are tasks of the step before, counted from its end.
  bool has(Tier tier, std::int32_t begin, std::int32_t end, std::size_t bytes,
           std::size_t reserve = 0) {
    const auto& budget = budgets_.at(static_cast<std::size_t>(tier));
    if (!budget.has_value()) return true;
    for (std::int32_t s = begin; s < end; ++s) {
      if (live_at(tier, s) + bytes + reserve > *budget) return false;
    }
    return true;
  }
  // Returns the bytes that are lacking for that; the tier has a budget.
  std::size_t lacking(Tier tier, std::int32_t begin, std::int32_t end, std::size_t bytes) {
    std::size_t most = 0;
    for (std::int32_t s = begin; s < end; ++s) most = std::max(most, live_at(tier, s));
    return most + bytes - *budgets_.at(static_cast<std::size_t>(tier));
  }

  void take(Tier tier, std::int32_t begin, std::int32_t end, std::size_t bytes) {
    for (std::int32_t s = begin; s < end; ++s) live_at(tier, s) += bytes;
  }

 private:
  std::size_t& live_at(Tier tier, std::int32_t task) {
    auto& used = used_.at(static_cast<std::size_t>(tier));
    return used.at(task < 0 ? used.size() + task : task);
  }

  TierBudgets budgets_;
  TaskProfile used_;
};

// Returns whether nothing may be kept or fetched early. Then no one needs to know what is live
// when.
bool leaves_no_room(const TierBudgets& budgets, Tier compute) {
  return std::ranges::all_of(std::array{compute, Tier::kHost}, [&](Tier tier) {
    return budgets.at(static_cast<std::size_t>(tier)) == std::optional<std::size_t>(0);
  });
}

// Returns whether the group's parameters are at home anywhere but whole in the compute tier.
bool lives_elsewhere(const StepModel& model, const StepPolicy& policy, std::int32_t group) {
  const Tier home = policy.homes.at(group).parameters;
  return home == Tier::kNvme || (home == Tier::kHost && !policy.unified) ||
         model.zero.of_parameters();
}

// The tasks as visits. A visit is either the neighbouring tasks of one unit in one direction, with
// the update that follows at once, or one chunk's deferred update. Deferred updates and the other
// tasks are counted separately. For loads that may be carried, the visits with which the step
// before ends stand before the first deferred update. Their tasks have numbers below 0.
class Visits {
 public:
  explicit Visits(const std::vector<Task>& tasks)
      : count_(static_cast<std::int32_t>(tasks.size())) {
    for (std::int32_t s = 0; s < count_; ++s) {
      const Task& task = tasks[s];
      std::vector<std::int32_t>& begins = begins_.at(task.is_deferred() ? 1 : 0);
      std::int32_t& last = last_.at(task.is_deferred() ? 1 : 0);
      if (begins.empty() || !are_one_visit(tasks[last], task)) begins.push_back(s);
      last = s;
      visit_.push_back(static_cast<std::int32_t>(begins.size()) - 1);
      is_deferred_.push_back(task.is_deferred());
    }
    for (std::int32_t s = count_ - 1; s >= 0 && !tasks[s].is_deferred(); --s) {
      const bool is_same = s + 1 < count_ && are_one_visit(tasks[s + 1], tasks[s]);
      if (!is_same) before_.push_back(s - count_);
      before_.back() = s - count_;
    }
  }

  // Returns the task at which a load is issued when it goes `visits` ahead: the first task of the
  // visit that is this many visits before, or of the first visit if there are fewer.
  std::int32_t ahead(const Load& load, std::int32_t visits) const {
    const bool deferred = is_deferred_[load.need_task];
    const std::vector<std::int32_t>& begins = begins_.at(deferred ? 1 : 0);
    const std::int32_t visit = visit_[load.need_task] - visits;
    if (visit >= 0) return begins[visit];
    if (!load.may_be_carried || before_.empty()) return begins.front();
    TERRACE_CHECK(deferred);
    const auto back = std::min<std::size_t>(-visit, before_.size());
    return std::max(before_[back - 1], load.need_task + 1 - count_);
  }

 private:
  static bool are_one_visit(const Task& a, const Task& b) {
    const bool is_one_update = a.group == b.group && a.chunk == b.chunk;
    return a.unit == b.unit && a.part == b.part && a.parts == b.parts &&
           (!a.is_deferred() || is_one_update);
  }

  std::int32_t count_;
  // The first tasks of the visits, and of the visits of deferred updates.
  std::array<std::vector<std::int32_t>, 2> begins_;
  std::array<std::int32_t, 2> last_{};  // the last task of each kind
  std::vector<std::int32_t> visit_;     // by task: its visit among the visits of its kind
  std::vector<bool> is_deferred_;
  // The first tasks of the visits that a step ends with, the last visit first.
  std::vector<std::int32_t> before_;
};

}  // namespace

FetchPlanner::FetchPlanner(const StepModel& model, const StepPolicy& policy,
                           const std::vector<Task>& tasks, const Draft& draft)
    : policy_(policy), tasks_(tasks), draft_(draft) {
  const auto uses = parameter_uses(model, tasks);
  stays_.resize(uses.size());
  for (std::int32_t g = 0; g < static_cast<std::int32_t>(uses.size()); ++g) {
    stays_[g].assign(uses[g].size(), false);
    if (!lives_elsewhere(model, policy, g)) continue;
    const std::size_t bytes = model.group_bytes(g);
    if (bytes > largest_.bytes) {
      largest_of_others_ = largest_.bytes;
      largest_ = {g, bytes};
    } else {
      largest_of_others_ = std::max(largest_of_others_, bytes);
    }
    for (std::size_t k = 1; k < uses[g].size(); ++k) {
      const Gap gap{g, k, uses[g][k - 1] + 1, uses[g][k], bytes};
      stays_[g][k] = gap.begin == gap.end;
      if (!stays_[g][k]) gaps_.push_back(gap);
    }
  }
  std::stable_sort(gaps_.begin(), gaps_.end(),
                   [](const Gap& a, const Gap& b) { return a.end - a.begin < b.end - b.begin; });
}

const TaskProfile& FetchPlanner::live_at_least() {
  if (!live_at_least_.has_value()) {
    live_at_least_ = live_in_tasks(draft_, FetchPlan{stays_, {}, {}}, tasks_.size());
  }
  return *live_at_least_;
}

// Returns the room to leave for a group that is fetched while the gap's group is kept. In an
// evaluation the two are different groups. A step with a backward leaves more room, for other bytes
// that come and go.
std::size_t FetchPlanner::reserve_beside(const Gap& gap) const {
  if (policy_.lookahead == 0) return 0;
  const bool is_of_others = !policy_.has_backward && gap.group == largest_.group;
  return is_of_others ? largest_of_others_ : largest_.bytes;
}

FetchPlan FetchPlanner::plan(const TierBudgets& budgets) {
  FetchPlan plan{stays_, {}, {}};
  const Tier compute = policy_.compute_tier();
  if (leaves_no_room(budgets, compute)) return plan;
  bool any_stays = false;
  if (!gaps_.empty()) {
    Room room(live_at_least(), budgets);
    for (const Gap& gap : gaps_) {
      if (!room.has(compute, gap.begin, gap.end, gap.bytes, reserve_beside(gap))) continue;
      room.take(compute, gap.begin, gap.end, gap.bytes);
      plan.stays[gap.group][gap.use] = true;
      any_stays = true;
    }
  }
  if (policy_.lookahead == 0) return plan;
  const TaskProfile live = any_stays ? live_in_tasks(draft_, plan, tasks_.size()) : live_at_least();
  fetch_early(live, budgets, plan);
  return plan;
}

std::vector<LoadNote> FetchPlanner::first_notes(const FetchPlan& plan) const {
  std::vector<LoadNote> notes;
  notes.reserve(draft_.loads.size());
  for (const Load& load : draft_.loads) {
    notes.push_back({.unit = load.unit,
                     .account = load.account,
                     .is_for_update = tasks_.at(load.need_task).kind == OpKind::kUpdate,
                     .limit = plan.leaves_out(load) ? LoadLimit::kStays : LoadLimit::kLookahead});
  }
  return notes;
}

void FetchPlanner::fetch_early(const TaskProfile& live, const TierBudgets& budgets,
                               FetchPlan& plan) const {
  Room room(live, budgets);
  plan.notes = first_notes(plan);
  for (const Load& load : draft_.loads) plan.issue_task.push_back(load.need_task);
  const auto first_forward = static_cast<std::int32_t>(
      std::find_if(tasks_.begin(), tasks_.end(),
                   [](const Task& task) { return task.kind == OpKind::kForward; }) -
      tasks_.begin());
  const Visits visits(tasks_);
  for (std::int32_t ahead = 1; ahead <= policy_.lookahead; ++ahead) {
    for (std::size_t i = 0; i < draft_.loads.size(); ++i) {
      const Load& load = draft_.loads[i];
      if (plan.leaves_out(load)) continue;
      // Loads of this step are not put before the loads of its first deferred updates: they may
      // have to wait for the end of the step before, and the loads behind them in the lane would
      // wait too.
      const std::int32_t earliest = tasks_.at(load.need_task).is_deferred()
                                        ? load.earliest_task
                                        : std::max(load.earliest_task, first_forward);
      const std::int32_t wanted = visits.ahead(load, ahead);
      const std::int32_t from = wanted >= 0 ? std::max(wanted, earliest) : wanted;
      const std::int32_t now = plan.issue_task[i];
      LoadNote& note = plan.notes[i];
      if (from >= now) {
        if (note.limit != LoadLimit::kLookahead) continue;
        const bool waits = wanted < now && earliest == load.earliest_task;
        note.limit = waits ? LoadLimit::kSource : LoadLimit::kStepStart;
        continue;
      }
      const auto held_back = [&](Tier tier, std::int32_t end, std::size_t bytes) {
        if (room.has(tier, from, end, bytes)) return false;
        if (note.limit == LoadLimit::kRoom) return true;  // told for a later issue already
        note.limit = LoadLimit::kRoom;
        note.tier = tier;
        note.lacking_bytes = room.lacking(tier, from, end, bytes);
        return true;
      };
      if (held_back(load.target_tier, now, load.target_bytes)) continue;
      if (load.staging_bytes != 0 && held_back(Tier::kHost, from + 1, load.staging_bytes)) continue;
      note.limit = LoadLimit::kLookahead;
      note.lacking_bytes = 0;
      note.tier = Tier::kHost;
      note.visits_ahead = ahead;
      room.take(load.target_tier, from, now, load.target_bytes);
      room.take(Tier::kHost, from, from + 1, load.staging_bytes);
      plan.issue_task[i] = from;
    }
  }
}

}  // namespace terrace
