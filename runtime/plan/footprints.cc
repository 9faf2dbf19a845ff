#include "runtime/plan/footprints.h"

namespace terrace {

const LeastStep& Footprints::step(const KeyedPolicy& asked) {
  if (last_ != asked.key) {
    step_.reset();  // two steps of a large model would take much memory
    step_ = std::make_unique<LeastStep>(asked.model, asked.policy());
    last_ = asked.key;
  }
  return *step_;
}

Footprints::Known& Footprints::known(const KeyedPolicy& asked) {
  const auto [entry, is_new] = known_.try_emplace(asked.key);
  if (is_new) {
    entry->second.live_bytes = step(asked).live_bytes();
    entry->second.needed_on_host = step(asked).needed_bytes(Tier::kHost);
  }
  return entry->second;
}

const std::array<std::size_t, kTierCount>& Footprints::live_bytes(const KeyedPolicy& asked) {
  return known(asked).live_bytes;
}

// Returns whether a tier can be packed within these bytes. A packing above the bytes that were
// enough for it is the lowest that the packer finds.
bool Footprints::packs_within(const KeyedPolicy& asked, Tier tier, std::size_t bytes) {
  std::optional<Packing>& packing = known(asked).packings.at(static_cast<std::size_t>(tier));
  const bool is_settled = packing.has_value() && (packing->packed_bytes <= bytes ||
                                                  packing->packed_bytes > packing->enough_bytes);
  if (!is_settled) packing = {step(asked).packed_bytes(tier, bytes), bytes};
  return packing->packed_bytes <= bytes;
}

std::size_t Footprints::packed_bytes(const KeyedPolicy& asked, Tier tier) {
  const auto t = static_cast<std::size_t>(tier);
  const Known& found = known(asked);
  return found.packings.at(t).value_or(Packing{found.live_bytes.at(t), 0}).packed_bytes;
}

bool Footprints::fit(const KeyedPolicy& asked, const TierBudgets& budgets,
                     std::span<const Tier> tiers) {
  const auto& live = live_bytes(asked);
  for (const Tier tier : tiers) {
    const auto t = static_cast<std::size_t>(tier);
    if (live.at(t) > budgets.at(t).value_or(live.at(t))) return false;
  }
  for (const Tier tier : tiers) {
    const auto& budget = budgets.at(static_cast<std::size_t>(tier));
    if (tier == Tier::kNvme || !budget.has_value()) continue;
    if (!packs_within(asked, tier, *budget)) return false;
  }
  return true;
}

}  // namespace terrace
