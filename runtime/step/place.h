#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/draft.h"

namespace terrace {

// At most so many bytes of each tier; unset: no limit.
using TierBudgets = std::array<std::optional<std::size_t>, kTierCount>;

// The ops that use a buffer, by their positions in the list; -1 where no op does.
struct BufferUse {
  std::int64_t first = -1;
  std::int64_t last = -1;
  std::int32_t first_access = 0;  // which access of the first op it is; its reads come first
};

// Ops in program order with their stages, and when each buffer lives. Borrows the draft's ops.
struct LinearDraft {
  std::vector<const Op*> ops;
  std::vector<std::int32_t> stages;  // of each op
  // Per buffer: half-open intervals of op positions. Persistent buffers live always; carried ones
  // from their first write to the end, and from the start to the last deferred read.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> live;
  std::vector<BufferUse> uses;  // per buffer
};

// How many stages before its first and after its last op the place of a transient buffer that is
// moved between tiers is kept free, per tier; around the end of the step into its beginning. Loads
// can then start earlier than where they stand in the list, the next step's first ones under the
// end of this, and stores can finish later, before reuse of the space makes anything wait.
using Slack = std::array<std::int32_t, kTierCount>;

LinearDraft linearize(const Draft& draft, const Slack& slack = {});

// Live bytes of a tier at each op.
std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier);

// Whether some tier's live bytes alone are over budget: then no placing makes it fit.
bool live_over_budget(const Draft& draft, const LinearDraft& linear, const TierBudgets& budgets);

// The most live bytes of a tier at any op: no packing is lower. Everything on NVMe is there always.
std::size_t live_peak(const Draft& draft, const LinearDraft& linear, Tier tier);

// Whether the tier's buffers can be placed within its budget. Quicker than place(), which packs as
// low as it can.
bool fits_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
               const TierBudgets& budgets);

// The place pass: every buffer gets an offset in its tier's arena (interval packing), every NVMe
// buffer its extent number, which count in the order of first use. Neither depends on the order in
// which the draft's buffers were made. `base`: another program of the same run, whose persistent
// buffers keep their places and their content; null for the first. `linear` is of this draft. A
// tier for which `enough` has a size is packed only as low as that.
Program place(const Draft& draft, const LinearDraft& linear, const Program* base,
              const TierBudgets& enough = {});

}  // namespace terrace
