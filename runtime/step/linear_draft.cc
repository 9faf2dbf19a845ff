#include "runtime/step/linear_draft.h"

#include <numeric>
#include <optional>

namespace terrace {
namespace {

// The loads of a draft under a fetch plan.
struct Fetches {
  std::vector<std::int32_t> issue_task;  // by load; counted from the step's beginning
  std::vector<bool> is_left_out;
  std::vector<bool> is_carried;
};

Fetches apply(const Draft& draft, std::int32_t tasks, const FetchPlan& plan) {
  Fetches fetches;
  for (std::size_t i = 0; i < draft.loads.size(); ++i) {
    const Load& load = draft.loads[i];
    const std::int32_t issued = plan.issue_task.empty() ? load.need_task : plan.issue_task.at(i);
    fetches.is_carried.push_back(issued < 0);
    fetches.issue_task.push_back(issued < 0 ? issued + tasks : issued);
    fetches.is_left_out.push_back(plan.leaves_out(load));
  }
  return fetches;
}

bool is_load(const DraftOp& op) { return op.phase == Phase::kLoad || op.phase == Phase::kLateLoad; }

// Sorts the ops into the order of the list: by task; within a task by phase, movement and step; and
// then as they were made. The ops come nearly sorted by task and each task has few of them, so they
// are dealt out to their tasks first.
class ListOrder {
 public:
  ListOrder(const Draft& draft, const Fetches& fetches, std::int32_t tasks)
      : draft_(draft), fetches_(fetches), begins_(static_cast<std::size_t>(tasks) + 1, 0) {}

  std::vector<std::uint32_t> run() {
    const auto count = static_cast<std::uint32_t>(draft_.ops.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      if (is_there(i)) ++begins_.at(task_of(i) + 1);
    }
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    std::vector<std::uint32_t> order(begins_.back());
    std::vector<std::uint32_t> next = begins_;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (is_there(i)) order[next[task_of(i)]++] = i;
    }
    for (std::size_t s = 0; s + 1 < begins_.size(); ++s) {
      const auto begin = order.begin() + begins_[s];
      const auto end = order.begin() + begins_[s + 1];
      const auto before = [this](std::uint32_t a, std::uint32_t b) { return comes_first(a, b); };
      if (!std::is_sorted(begin, end, before)) std::sort(begin, end, before);
    }
    return order;
  }

  std::size_t task_of(std::uint32_t i) const {
    const DraftOp& op = draft_.ops[i];
    return static_cast<std::size_t>(is_load(op) ? fetches_.issue_task[op.movement] : op.task);
  }
  // Returns whether the op loads a carried buffer. Such a load is for the next step, and therefore
  // late.
  bool is_carried(std::uint32_t i) const {
    const DraftOp& op = draft_.ops[i];
    return is_load(op) && fetches_.is_carried[op.movement];
  }

 private:
  bool is_there(std::uint32_t i) const {
    const DraftOp& op = draft_.ops[i];
    return !is_load(op) || !fetches_.is_left_out[op.movement];
  }

  bool comes_first(std::uint32_t a, std::uint32_t b) const {
    const DraftOp& first = draft_.ops[a];
    const DraftOp& second = draft_.ops[b];
    const Phase phase = is_carried(a) ? Phase::kLateLoad : first.phase;
    const Phase other = is_carried(b) ? Phase::kLateLoad : second.phase;
    if (phase != other) return phase < other;
    if (first.movement != second.movement) return first.movement < second.movement;
    return first.step != second.step ? first.step < second.step : a < b;
  }

  const Draft& draft_;
  const Fetches& fetches_;
  std::vector<std::uint32_t> begins_;  // by task, and behind the last the list's end
};

// Settles which buffer each buffer stands for, and the life of each.
void settle_buffers(const Draft& draft, const Fetches& fetches, LinearDraft& linear) {
  linear.stands_for.resize(draft.buffers.size());
  std::iota(linear.stands_for.begin(), linear.stands_for.end(), 0);
  linear.lives.reserve(draft.buffers.size());
  for (const Buffer& buffer : draft.buffers) linear.lives.push_back(buffer.life);
  for (std::size_t i = 0; i < draft.loads.size(); ++i) {
    const Load& load = draft.loads[i];
    if (fetches.is_carried[i]) linear.lives.at(load.target) = Life::kCarried;
  }
  if (std::ranges::find(fetches.is_left_out, true) == fetches.is_left_out.end()) return;
  for (const DraftOp& op : draft.ops) {
    if (!is_load(op) || !fetches.is_left_out[op.movement]) continue;
    for (const Access& access : draft.writes(op)) linear.stands_for.at(access.buffer) = kNoBuffer;
  }
  for (std::size_t i = 0; i < draft.loads.size(); ++i) {
    if (!fetches.is_left_out[i]) continue;
    const Load& load = draft.loads[i];
    TERRACE_CHECK(load.before != kNoBuffer);
    linear.stands_for.at(load.target) = linear.stands_for.at(load.before);
  }
}

std::vector<BufferUse> uses_of(const Draft& draft, const LinearDraft& linear) {
  std::vector<BufferUse> touched(linear.stands_for.size());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(linear.ops.size()); ++i) {
    const DraftOp& op = *linear.ops[i];
    const std::span<const Access> accesses = draft.all(op);
    const bool deferred = linear.parts[i] == kOfStepBefore;
    const bool moves = op.op.lane != Lane::kTensor &&
                       std::ranges::find(accesses, Role::kTarget, &Access::role) != accesses.end();
    for (std::size_t a = 0; a < accesses.size(); ++a) {
      BufferUse& touch = touched.at(linear.stands_for.at(accesses[a].buffer));
      if (touch.first < 0) {
        touch.first = i;
        touch.first_access = static_cast<std::int32_t>(a);
      }
      touch.last = i;
      if (deferred) touch.last_deferred = i;
      if (moves) touch.moved = true;
      if (a >= op.reads && !deferred && touch.first_write < 0) touch.first_write = i;
    }
  }
  return touched;
}

Lifetime life_of(Life life, const BufferUse& touch, std::int64_t end) {
  if (life == Life::kPersistent) return Lifetime({0, end});
  if (touch.first < 0) return {};
  if (life == Life::kTransient) return Lifetime({touch.first, touch.last + 1});
  TERRACE_CHECK_LT(touch.last_deferred, touch.first_write);
  return {{0, touch.last_deferred + 1}, {touch.first_write, end}};
}

// Returns where each task begins in the list, and behind the last task the list's end.
std::vector<std::int64_t> task_begins(const std::vector<std::int32_t>& tasks) {
  const std::int32_t count = tasks.empty() ? 0 : tasks.back() + 1;
  std::vector<std::int64_t> begins;
  begins.reserve(static_cast<std::size_t>(count) + 1);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    while (std::ssize(begins) <= tasks[i]) begins.push_back(static_cast<std::int64_t>(i));
  }
  begins.push_back(std::ssize(tasks));
  return begins;
}

// Returns the lifetime of a carried buffer with `slack` more tasks behind its last deferred read
// and before its first write.
Lifetime widened_carried(const Lifetime& life, std::int32_t slack,
                         const std::vector<std::int32_t>& tasks,
                         const std::vector<std::int64_t>& begins) {
  const auto count = static_cast<std::int32_t>(begins.size()) - 1;
  const std::int64_t read = life.front().second;
  const std::int32_t behind = read == 0 ? 0 : tasks.at(read - 1) + slack + 1;
  const std::int32_t first = tasks.at(life.back().first) - slack;
  const std::int64_t end = begins.back();
  if (first <= behind) return Lifetime({0, end});
  return {{0, begins.at(std::min(behind, count))}, {begins.at(first), end}};
}

// Returns `life` with `slack` more tasks before and behind it, in a list that begins again at its
// end.
Lifetime widened(const std::pair<std::int64_t, std::int64_t>& life, std::int32_t slack,
                 const std::vector<std::int32_t>& tasks, const std::vector<std::int64_t>& begins) {
  const auto count = static_cast<std::int32_t>(begins.size()) - 1;
  const std::int64_t end = begins.back();
  const std::int32_t first = tasks.at(life.first) - slack;
  const std::int32_t behind = tasks.at(life.second - 1) + slack + 1;
  if (behind - first >= count) return Lifetime({0, end});
  const Lifetime::Interval own = {begins.at(std::max(first, 0)),
                                  begins.at(std::min(behind, count))};
  if (first < 0) return {own, {begins.at(first + count), end}};
  if (behind > count) return {own, {0, begins.at(behind - count)}};
  return Lifetime(own);
}

}  // namespace

LinearDraft linearize(const Draft& draft, std::int32_t tasks, const FetchPlan& plan) {
  LinearDraft linear;
  const Fetches fetches = apply(draft, tasks, plan);
  ListOrder list(draft, fetches, tasks);
  const std::vector<std::uint32_t> order = list.run();
  linear.ops.reserve(order.size());
  linear.tasks.reserve(order.size());
  linear.parts.reserve(order.size());
  for (const std::uint32_t i : order) {
    const DraftOp& op = draft.ops[i];
    linear.ops.push_back(&op);
    linear.tasks.push_back(static_cast<std::int32_t>(list.task_of(i)));
    linear.parts.push_back(list.is_carried(i) ? kOfThisStep : op.op.parts);
  }
  settle_buffers(draft, fetches, linear);
  linear.uses = uses_of(draft, linear);
  const auto end = static_cast<std::int64_t>(linear.ops.size());
  linear.live.reserve(draft.buffers.size());
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    linear.live.push_back(life_of(linear.lives[b], linear.uses[b], end));
  }
  return linear;
}

void set_slack(const Draft& draft, Tier tier, std::int32_t tasks, LinearDraft& linear) {
  const auto end = static_cast<std::int64_t>(linear.ops.size());
  const std::vector<std::int64_t> begins = task_begins(linear.tasks);
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    const BufferUse& use = linear.uses[b];
    if (draft.buffers[b].tier != tier || !use.moved) continue;
    Lifetime life = life_of(linear.lives[b], use, end);
    if (!life.empty() && tasks > 0) {
      if (linear.lives[b] == Life::kTransient) {
        life = widened(life.front(), tasks, linear.tasks, begins);
      } else if (linear.lives[b] == Life::kCarried) {
        life = widened_carried(life, tasks, linear.tasks, begins);
      }
    }
    linear.live[b] = life;
  }
}

std::vector<Lifetime::Interval> joined_life(const LinearDraft& linear, BufferId buffer) {
  const Lifetime& own = linear.live[buffer];
  const Lifetime& next = linear.live[linear.repeated->next[buffer]];
  std::vector<Lifetime::Interval> lives(own.begin(), own.end());
  lives.insert(lives.end(), next.begin(), next.end());
  std::ranges::sort(lives);
  std::vector<Lifetime::Interval> joined;
  for (const Lifetime::Interval& one : lives) {
    if (joined.empty() || joined.back().second < one.first) {
      joined.push_back(one);
    } else {
      joined.back().second = std::max(joined.back().second, one.second);
    }
  }
  return joined;
}

std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier) {
  std::vector<std::int64_t> change(linear.ops.size() + 1, 0);
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    if (draft.buffers[b].tier != tier) continue;
    const auto size = static_cast<std::int64_t>(draft.buffers[b].size_bytes);
    visit_life_at_place(linear, static_cast<BufferId>(b),
                        [&](std::int64_t begin, std::int64_t end) {
                          change[begin] += size;
                          change[end] -= size;
                        });
  }
  std::vector<std::size_t> profile;
  profile.reserve(linear.ops.size());
  std::int64_t live = 0;
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    live += change[i];
    profile.push_back(static_cast<std::size_t>(live));
  }
  return profile;
}

std::size_t live_peak(const Draft& draft, const LinearDraft& linear, Tier tier) {
  if (tier == Tier::kNvme) {
    std::size_t bytes = 0;
    for (const Buffer& buffer : draft.buffers) {
      if (buffer.tier == tier) bytes += buffer.size_bytes;
    }
    return bytes;
  }
  const std::vector<std::size_t> profile = live_profile(draft, linear, tier);
  return profile.empty() ? 0 : std::ranges::max(profile);
}

}  // namespace terrace
