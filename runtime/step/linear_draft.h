#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/step/draft.h"

namespace terrace {

// What a draft leaves open: which loads are left out, and when the others are issued. Decided by
// runtime/step/residency.
struct FetchPlan {
  // Per unit and use but the first, whether the parameters stay in the compute tier since the use
  // before, so that the load for this use is left out. Empty: all loads are made.
  std::vector<std::vector<bool>> stays;
  // Per load of the draft, the task at which it is issued; below 0 it is one of the step before,
  // counted from its end. Empty: the task that needs it.
  std::vector<std::int32_t> issue_task;

  bool leaves_out(const Load& load) const {
    return load.unit >= 0 && load.use > 0 && !stays.empty() &&
           stays[static_cast<std::size_t>(load.unit)][load.use];
  }
};

// When a buffer lives: half-open intervals of op positions, ascending, two at the most.
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

// The ops that use a buffer, by their positions in the list; -1 where no op does.
struct BufferUse {
  std::int64_t first = -1;
  std::int64_t last = -1;
  std::int32_t first_access = 0;    // which access of the first op it is; its reads come first
  std::int64_t first_write = -1;    // by an op of this step
  std::int64_t last_deferred = -1;  // read by an op of the step before
  bool moved = false;               // between tiers or data-parallel ranks
};

// Ops in program order with their tasks, and when each buffer lives. Borrows the draft's ops.
struct LinearDraft {
  std::vector<const DraftOp*> ops;
  std::vector<std::int32_t> tasks;  // of each op
  std::vector<Parts> parts;         // of each op: loads that are carried are of this step
  // Per buffer of the draft, which buffer its accesses mean. Usually that is the buffer itself.
  // Where parameters stay, it is the buffer in which they are. kNoBuffer: only a load that is left
  // out would have used it.
  std::vector<BufferId> stands_for;
  std::vector<Life> lives;  // per buffer
  // Per buffer. Persistent buffers live always; carried ones from their first write to the end, and
  // from the start to the last deferred read.
  std::vector<Lifetime> live;
  std::vector<BufferUse> uses;  // per buffer
};

// `tasks`: how many the schedule has. Without slack.
LinearDraft linearize(const Draft& draft, std::int32_t tasks, const FetchPlan& plan = {});

// Gives a tier's buffers this slack instead of what they have: so many tasks before its first and
// after its last op the place of a transient buffer that is moved between tiers is kept free,
// around the end of the step into its beginning. Loads can then start earlier than where they stand
// in the list, the next step's first ones under the end of this, and stores can finish later,
// before reuse of the space makes anything wait.
void set_slack(const Draft& draft, Tier tier, std::int32_t tasks, LinearDraft& linear);

// Live bytes of a tier at each op.
std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier);

// The most live bytes of a tier at any op: no packing is lower. Everything on NVMe is there always.
std::size_t live_peak(const Draft& draft, const LinearDraft& linear, Tier tier);

}  // namespace terrace
