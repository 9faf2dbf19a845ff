#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/step/linear_draft.h"

namespace terrace {

// The most bytes that each tier may use; unset: no limit.
using TierBudgets = std::array<std::optional<std::size_t>, kTierCount>;

// Returns whether a tier's live bytes alone are over its budget. No placement makes it fit then.
bool live_over_budget(const Draft& draft, const LinearDraft& linear, Tier tier,
                      const TierBudgets& budgets);
// Returns whether the live bytes of any tier are over its budget.
bool live_over_budget(const Draft& draft, const LinearDraft& linear, const TierBudgets& budgets);

// Returns the end of a tier in memory that is packed as low as possible. The packing stops early
// once the end is at `enough_bytes` or lower.
std::size_t packed_bytes(const Draft& draft, const LinearDraft& linear, Tier tier,
                         std::size_t enough_bytes);

// Returns whether the tier's buffers can be placed within its budget. Quicker than a packing, which
// packs as low as it can.
bool fits_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
               const TierBudgets& budgets);

// The place pass. It gives every buffer an offset in its tier's arena (interval packing), and every
// NVMe buffer its extent number. Extents are numbered in the order of first use. Neither offsets
// nor extent numbers depend on the order in which the draft's buffers were made.
class ArenaPacking {
 public:
  // `base` is another program of the same run, whose persistent buffers keep their places and their
  // content; null for the first program. `linear` is of this draft. Borrows all arguments.
  ArenaPacking(const Draft& draft, const LinearDraft& linear, const Program* base);

  // Packs a tier in memory with the present lifetimes of its buffers, as low as possible. If
  // `enough_bytes` is given, the packing stops early once it is that low.
  void pack(Tier tier, std::optional<std::size_t> enough_bytes = std::nullopt);
  // Packs a tier in memory, but no lower than its budget requires, if there is a budget. If the
  // result is above the budget, leaves the tier as it was and returns false.
  bool pack_within(Tier tier, std::optional<std::size_t> budget_bytes);
  // Returns the bytes that the tier's buffers took when they were packed.
  TierUse& use(Tier tier) { return arena(tier).use; }
  // Returns the program. Both tiers in memory must be packed.
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
  std::map<BufferKey, std::size_t> fixed_;  // offsets of the base's persistent buffers
  std::array<Arena, kTierCount> arenas_;
};

}  // namespace terrace
