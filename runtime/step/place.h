#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
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

// Returns the end of a tier in memory that is packed as low as can be, or, where it comes to
// `enough_bytes`, only as low as these.
std::size_t packed_bytes(const Draft& draft, const LinearDraft& linear, Tier tier,
                         std::size_t enough_bytes);

// Whether the tier's buffers can be placed within its budget. Quicker than a packing, which
// packs as low as it can.
bool fits_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
               const TierBudgets& budgets);

// The place pass: every buffer gets an offset in its tier's arena (interval packing), every NVMe
// buffer its extent number, which count in the order of first use. Neither depends on the order in
// which the draft's buffers were made.
class ArenaPacking {
 public:
  // `base`: another program of the same run, whose persistent buffers keep their places and their
  // content; null for the first. `linear` is of this draft. Borrows all.
  ArenaPacking(const Draft& draft, const LinearDraft& linear, const Program* base);

  // Packs a tier in memory as its buffers live now, as low as can be, or, where `enough_bytes` are
  // given, only as low as these.
  void pack(Tier tier, std::optional<std::size_t> enough_bytes = std::nullopt);
  // Likewise, only as low as the budget, where there is one. Leaves the tier as it was and returns
  // false where it is packed above that.
  bool pack_within(Tier tier, std::optional<std::size_t> budget_bytes);
  // What the tier's buffers took when they were packed.
  TierUse& use(Tier tier) { return arena(tier).use; }
  // The program, when both tiers are packed.
  Program program() const;

 private:
  struct Arena {
    std::vector<BufferId> ids;
    std::vector<std::size_t> offsets;
    TierUse use;
  };

  Arena packed(Tier tier, std::size_t enough_bytes) const;
  Arena& arena(Tier tier) { return arenas_.at(static_cast<std::size_t>(tier)); }

  const Draft& draft_;
  const LinearDraft& linear_;
  const Program* base_;
  std::map<BufferKey, std::size_t> fixed_;  // offsets of the persistent buffers of the base
  std::array<Arena, kTierCount> arenas_;
};

}  // namespace terrace
