#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "memory/tier.h"

// The bytes that a program will use of each tier, against its budget; known before the first
// allocation.
namespace terrace {

struct TierLedger {
  std::optional<std::size_t> budget_bytes;                    // unset: no limit
  std::size_t peak_bytes = 0;                                 // after packing: the bytes allocated
  std::size_t live_peak_bytes = 0;                            // the largest sum alive at any time
  std::array<std::size_t, kAccountCount> charged_bytes = {};  // by account, at the live peak

  std::size_t& operator[](Account account) {
    return charged_bytes.at(static_cast<std::size_t>(account));
  }
  std::size_t operator[](Account account) const {
    return charged_bytes.at(static_cast<std::size_t>(account));
  }
  // Returns the bytes above the budget; 0 where it fits.
  std::size_t over_bytes() const;
};

struct Ledger {
  std::array<TierLedger, kTierCount> tiers;

  TierLedger& operator[](Tier tier) { return tiers.at(static_cast<std::size_t>(tier)); }
  const TierLedger& operator[](Tier tier) const { return tiers.at(static_cast<std::size_t>(tier)); }
};

// Returns whether every tier's packed peak is within its budget.
bool fits(const Ledger& ledger);

// Returns an aligned table for a console: a line of titles, then a line per tier.
std::string to_text(const Ledger& ledger);

// Returns text for an OutOfMemory: the tiers over budget, by how much, and the largest accounts
// there, one clause per tier. Empty if the ledger fits.
std::string describe_shortfall(const Ledger& ledger);

}  // namespace terrace
