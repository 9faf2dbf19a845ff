#include "runtime/step/residency.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <tuple>
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

// Issues loads earlier, visit by visit, as far as there is room. In a step with a period, the loads
// for the same task of alike micro-batches follow the first of them: either all of them are issued
// earlier, or none is.
class EarlyLoads {
 public:
  // The plan has a note and a task of issue for each load. Borrows everything but the room.
  EarlyLoads(const std::vector<Task>& tasks, const Draft& draft, Room room, FetchPlan& plan)
      : tasks_(tasks),
        draft_(draft),
        room_(std::move(room)),
        plan_(plan),
        visits_(tasks),
        first_forward_(static_cast<std::int32_t>(
            std::ranges::find(tasks, OpKind::kForward, &Task::kind) - tasks.begin())),
        follower_(draft.loads.size(), kNone),
        follows_(draft.loads.size(), false) {
    if (draft.period.has_value()) find_followers(*draft.period);
  }

  void run(std::int32_t lookahead) {
    for (std::int32_t ahead = 1; ahead <= lookahead; ++ahead) {
      for (std::size_t i = 0; i < draft_.loads.size(); ++i) {
        if (!follows_[i] && !plan_.leaves_out(draft_.loads[i])) issue_ahead(i, ahead);
      }
    }
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void find_followers(const Period& period) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t>
        last;  // by position, and number at it
    std::int32_t number = 0;
    for (std::size_t i = 0; i < draft_.loads.size(); ++i) {
      const std::int32_t task = draft_.loads[i].need_task;
      const bool is_of_same = i > 0 && draft_.loads[i - 1].need_task == task;
      number = is_of_same ? number + 1 : 0;
      const std::int32_t position = period.position_of(task);
      if (position < 0 || plan_.leaves_out(draft_.loads[i])) continue;
      const auto [known, is_first] = last.try_emplace({position, number}, i);
      if (is_first) continue;
      follower_[known->second] = i;
      follows_[i] = true;
      known->second = i;
    }
  }

  // Issues a load and those that follow it this many visits ahead, if that is earlier than now and
  // there is room.
  void issue_ahead(std::size_t leader, std::int32_t ahead) {
    for (std::size_t i = leader; i != kNone; i = follower_[i]) {
      if (!is_earlier(i, ahead) || !has_room(i, ahead)) return note_for_all(leader, plan_.notes[i]);
    }
    for (std::size_t i = leader; i != kNone; i = follower_[i]) {
      const Load& load = draft_.loads[i];
      const std::int32_t from = task_ahead(load, ahead);
      LoadNote& note = plan_.notes[i];
      note.limit = LoadLimit::kLookahead;
      note.lacking_bytes = 0;
      note.tier = Tier::kHost;
      note.visits_ahead = ahead;
      room_.take(load.target_tier, from, plan_.issue_task[i], load.target_bytes);
      room_.take(Tier::kHost, from, from + 1, load.staging_bytes);
      plan_.issue_task[i] = from;
    }
  }

  // Notes for a load and those that follow it what held one of them back.
  void note_for_all(std::size_t leader, const LoadNote& held_back) {
    for (std::size_t i = leader; i != kNone; i = follower_[i]) {
      LoadNote& note = plan_.notes[i];
      note.limit = held_back.limit;
      note.tier = held_back.tier;
      note.lacking_bytes = held_back.lacking_bytes;
    }
  }

  // Returns the earliest task at which the load may be issued. Loads of this step are not put
  // before the loads of its first deferred updates: they may have to wait for the end of the step
  // before, and the loads behind them in the lane would wait too.
  std::int32_t earliest(const Load& load) const {
    return tasks_.at(load.need_task).is_deferred() ? load.earliest_task
                                                   : std::max(load.earliest_task, first_forward_);
  }
  std::int32_t task_ahead(const Load& load, std::int32_t ahead) const {
    const std::int32_t wanted = visits_.ahead(load, ahead);
    return wanted >= 0 ? std::max(wanted, earliest(load)) : wanted;
  }

  bool is_earlier(std::size_t i, std::int32_t ahead) {
    const Load& load = draft_.loads[i];
    const std::int32_t now = plan_.issue_task[i];
    if (task_ahead(load, ahead) < now) return true;
    LoadNote& note = plan_.notes[i];
    if (note.limit != LoadLimit::kLookahead) return false;
    const bool waits = visits_.ahead(load, ahead) < now && earliest(load) == load.earliest_task;
    note.limit = waits ? LoadLimit::kSource : LoadLimit::kStepStart;
    return false;
  }

  bool has_room(std::size_t i, std::int32_t ahead) {
    const Load& load = draft_.loads[i];
    const std::int32_t from = task_ahead(load, ahead);
    return has_room(i, load.target_tier, {from, plan_.issue_task[i]}, load.target_bytes) &&
           (load.staging_bytes == 0 ||
            has_room(i, Tier::kHost, {from, from + 1}, load.staging_bytes));
  }

  // Returns whether the tier has room for a load during the tasks [first, second), and notes what
  // lacks.
  bool has_room(std::size_t i, Tier tier, const std::pair<std::int32_t, std::int32_t>& tasks,
                std::size_t bytes) {
    if (room_.has(tier, tasks.first, tasks.second, bytes)) return true;
    LoadNote& note = plan_.notes[i];
    if (note.limit == LoadLimit::kRoom) return false;  // told for a later issue already
    note.limit = LoadLimit::kRoom;
    note.tier = tier;
    note.lacking_bytes = room_.lacking(tier, tasks.first, tasks.second, bytes);
    return false;
  }

  const std::vector<Task>& tasks_;
  const Draft& draft_;
  Room room_;
  FetchPlan& plan_;
  const Visits visits_;
  const std::int32_t first_forward_;
  std::vector<std::size_t> follower_;  // by load: the next one that follows it; kNone if none
  std::vector<bool> follows_;          // by load: whether it follows another
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
    add_gaps(g, uses[g], bytes);
  }
  std::ranges::sort(gaps_, {}, [](const Gap& gap) {
    return std::tuple(gap.end - gap.begin, gap.group, gap.leader, gap.use);
  });
}

void FetchPlanner::add_gaps(std::int32_t group, const std::vector<std::int32_t>& uses,
                            std::size_t bytes) {
  std::map<std::int32_t, std::size_t> leaders;  // by the position of the use behind the gap
  for (std::size_t k = 1; k < uses.size(); ++k) {
    Gap gap{group, k, k, uses[k - 1] + 1, uses[k], bytes};
    stays_[group][k] = gap.begin == gap.end;
    if (stays_[group][k]) continue;
    if (draft_.period.has_value() && draft_.period->position_of(uses[k - 1]) >= 0) {
      const std::int32_t position = draft_.period->position_of(uses[k]);
      if (position >= 0) gap.leader = leaders.try_emplace(position, k).first->second;
    }
    gaps_.push_back(gap);
  }
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
std::size_t FetchPlanner::reserve_beside(const Gap& gap, std::int32_t lookahead) const {
  if (lookahead == 0) return 0;
  const bool is_of_others = !policy_.has_backward && gap.group == largest_.group;
  return is_of_others ? largest_of_others_ : largest_.bytes;
}

FetchPlan FetchPlanner::plan(const TierBudgets& budgets, std::int32_t lookahead) {
  FetchPlan plan{stays_, {}, {}};
  if (leaves_no_room(budgets, policy_.compute_tier())) return plan;
  const bool any_stays = choose_stays(budgets, lookahead, plan);
  if (lookahead == 0) return plan;
  const TaskProfile live = any_stays ? live_in_tasks(draft_, plan, tasks_.size()) : live_at_least();
  fetch_early(live, budgets, lookahead, plan);
  return plan;
}

bool FetchPlanner::choose_stays(const TierBudgets& budgets, std::int32_t lookahead,
                                FetchPlan& plan) {
  if (gaps_.empty()) return false;
  const Tier compute = policy_.compute_tier();
  Room room(live_at_least(), budgets);
  bool any_stays = false;
  for (std::size_t first = 0, behind = 0; first < gaps_.size(); first = behind) {
    const auto is_of_leader = [&](const Gap& gap) {
      return gap.group == gaps_[first].group && gap.leader == gaps_[first].leader;
    };
    for (behind = first + 1; behind < gaps_.size() && is_of_leader(gaps_[behind]);) ++behind;
    const auto led = std::span(gaps_).subspan(first, behind - first);
    const bool have_room = std::ranges::all_of(led, [&](const Gap& gap) {
      return room.has(compute, gap.begin, gap.end, gap.bytes, reserve_beside(gap, lookahead));
    });
    if (!have_room) continue;
    for (const Gap& gap : led) {
      room.take(compute, gap.begin, gap.end, gap.bytes);
      plan.stays[gap.group][gap.use] = true;
    }
    any_stays = true;
  }
  return any_stays;
}

std::vector<LoadNote> FetchPlanner::first_notes(const FetchPlan& plan) const {
  std::vector<LoadNote> notes;
  notes.reserve(draft_.loads.size());
  for (const Load& load : draft_.loads) {
    notes.push_back({.unit = load.unit,
                     .times = tasks_.at(load.need_task).times,
                     .account = load.account,
                     .is_for_update = tasks_.at(load.need_task).kind == OpKind::kUpdate,
                     .limit = plan.leaves_out(load) ? LoadLimit::kStays : LoadLimit::kLookahead});
  }
  return notes;
}

void FetchPlanner::fetch_early(const TaskProfile& live, const TierBudgets& budgets,
                               std::int32_t lookahead, FetchPlan& plan) const {
  plan.notes = first_notes(plan);
  for (const Load& load : draft_.loads) plan.issue_task.push_back(load.need_task);
  EarlyLoads(tasks_, draft_, Room(live, budgets), plan).run(lookahead);
}

}  // namespace terrace
