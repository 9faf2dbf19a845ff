#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/step/draft.h"
#include "runtime/step/load_note.h"
#include "runtime/step/repeated_ops.h"

namespace terrace {

// The decisions that a draft leaves open: which loads are left out, and when the others are issued.
// runtime/step/residency makes them.
struct FetchPlan {
  // Per group and use, except the first use: whether the parameters stay in the compute tier since
  // the use before, so that the load for this use is left out. Empty: all loads are made.
  std::vector<std::vector<bool>> stays;
  // Per load of the draft: the task at which it is issued. A number below 0 is a task of the step
  // before, counted from that step's end. Empty: every load is issued at the task that needs it.
  std::vector<std::int32_t> issue_task;
  std::vector<LoadNote> notes;  // per load, like issue_task

  bool leaves_out(const Load& load) const {
    return load.group >= 0 && load.use > 0 && !stays.empty() &&
           stays[static_cast<std::size_t>(load.group)][load.use];
  }
};

// The lifetime of a buffer: half-open intervals of op positions, in ascending order, at most two.
class Lifetime {
 public:
  using Interval = std::pair<std::int64_t, std::int64_t>;

  Lifetime() = default;
  explicit Lifetime(const Interval& only) : intervals_{only, {}}, count_(1) {}
  Lifetime(const Interval& first, const Interval& second)
      : intervals_{std::min(first, second), std::max(first, second)}, count_(2) {}

  const Interval* begin() const { return intervals_.data(); }
  const Interval* end() const { return intervals_.data() + count_; }
  bool empty() const { return count_ == 0; }
  const Interval& front() const { return intervals_.front(); }
  const Interval& back() const { return intervals_.at(count_ - 1); }

 private:
  std::array<Interval, 2> intervals_{};
  std::size_t count_ = 0;
};

// The ops that use a buffer, by their positions in the list; -1 if there is no such op.
struct BufferUse {
  std::int64_t first = -1;
  std::int64_t last = -1;
  std::int32_t first_access = 0;    // index among the first op's accesses; its reads come first
  std::int64_t first_write = -1;    // by an op of this step
  std::int64_t last_deferred = -1;  // by an op of the step before
  bool moved = false;               // by a copy, a collective of data-parallel ranks or a receive
};

// The ops in program order with their tasks, and when each buffer lives. Borrows the draft's ops.
struct LinearDraft {
  std::vector<const DraftOp*> ops;
  std::vector<std::int32_t> tasks;  // of each op
  std::vector<Parts> parts;         // of each op; the load of a carried buffer is of this step
  // Per buffer of the draft: the buffer that accesses to it mean. Usually that is the buffer
  // itself. Where parameters stay, it is the buffer that already has them. kNoBuffer: only a load
  // that is left out would have used the buffer.
  std::vector<BufferId> stands_for;
  std::vector<Life> lives;  // per buffer
  // Per buffer. Persistent buffers live always. Carried buffers live from their first write to the
  // end, and from the start to the last deferred read.
  std::vector<Lifetime> live;
  std::vector<BufferUse> uses;  // per buffer
  // The repeated ops. linearize() leaves this empty; a caller sets it with find_repeated_ops().
  std::optional<RepeatedOps> repeated;
};

// Puts the ops of a draft in order, as the plan says. Gives the buffers no slack. `tasks` is the
// number of tasks in the schedule.
LinearDraft linearize(const Draft& draft, std::int32_t tasks, const FetchPlan& plan = {});

// Gives a tier's buffers this slack in place of their present slack. The place of a buffer that is
// moved between tiers is kept free for `tasks` more tasks before and after its use: for a transient
// buffer before its first and after its last op, around the end of the step into its beginning; for
// a carried buffer after its last deferred read and before its first write. Loads can then start
// earlier than their position in the list, and the next step's first loads can start under the end
// of this step. Stores can finish later before reuse of their space makes anything wait.
void set_slack(const Draft& draft, Tier tier, std::int32_t tasks, LinearDraft& linear);

// Returns the intervals in which a buffer or its `next` is live, merged where they touch. The
// buffer must be one of RepeatedOps::filled.
std::vector<Lifetime::Interval> joined_life(const LinearDraft& linear, BufferId buffer);

// Calls visit(begin, end) for each interval in which the place of a buffer is in use. They are
// disjoint and come in ascending order. Two buffers may share a place, the second one micro-batch
// later (RepeatedOps::next). Then the first has the intervals of both, and the second has none.
template <typename Visit>
void visit_life_at_place(const LinearDraft& linear, BufferId buffer, Visit visit) {
  const bool shares = linear.repeated.has_value() && linear.repeated->shares_place(buffer);
  if (!shares) {
    for (const auto& [begin, end] : linear.live[static_cast<std::size_t>(buffer)])
      visit(begin, end);
  } else if (linear.repeated->is_filled[static_cast<std::size_t>(buffer)]) {
    for (const auto& [begin, end] : joined_life(linear, buffer)) visit(begin, end);
  }
}

// Returns the live bytes of a tier at each op.
std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier);

// Returns the most live bytes of a tier at any op. No packing is lower. Everything on NVMe is there
// always.
std::size_t live_peak(const Draft& draft, const LinearDraft& linear, Tier tier);

}  // namespace terrace
