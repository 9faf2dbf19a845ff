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

// Ops in program order with their stages, and when each buffer lives.
struct LinearDraft {
  std::vector<Op> ops;
  std::vector<std::int32_t> stages;  // of each op
  // Per buffer: half-open intervals of op positions. Persistent buffers live always; carried ones
  // from their first write to the end, and from the start to the last deferred read.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> live;
};

// How many stages before its first and after its last op the place of a transient buffer that is
// moved between tiers is kept free, per tier; around the end of the step into its beginning. Loads
// can then start earlier than where they stand in the list, the next step's first ones under the
// end of this, and stores can finish later, before reuse of the space makes anything wait.
using Slack = std::array<std::int32_t, kTierCount>;

LinearDraft linearize(const Draft& draft, const Slack& slack = {});

// Live bytes of a tier at each op.
std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier);

// The place pass: every buffer gets an offset in its tier's arena (interval packing), every NVMe
// buffer its extent number. `base`: another program of the same run, whose persistent buffers keep
// their places and their content; null for the first.
Program place(const Draft& draft, const Program* base, const Slack& slack = {});

}  // namespace terrace
