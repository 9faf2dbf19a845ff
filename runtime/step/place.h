#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/linear_draft.h"

namespace terrace {

// At most so many bytes of each tier; unset: no limit.
using TierBudgets = std::array<std::optional<std::size_t>, kTierCount>;

// Whether a tier's live bytes alone are over its budget: then no placing makes it fit.
bool live_over_budget(const Draft& draft, const LinearDraft& linear, Tier tier,
                      const TierBudgets& budgets);
// Whether those of any tier are.
bool live_over_budget(const Draft& draft, const LinearDraft& linear, const TierBudgets& budgets);

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

// What a program is placed within.
struct PlaceLimits {
  TierBudgets budgets;  // that it must not exceed
  TierBudgets enough;   // as for place()
};

// Likewise; none where some tier is packed above its budget. Then no more time is spent than that
// takes to find out.
std::optional<Program> place_within(const Draft& draft, const LinearDraft& linear,
                                    const Program* base, const PlaceLimits& limits);

}  // namespace terrace
