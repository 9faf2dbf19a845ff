#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Tiers, where bytes live, fastest first; and accounts, the purposes they are kept for.
namespace terrace {

enum class Tier : std::uint8_t { kDevice, kHost, kNvme };
inline constexpr std::size_t kTierCount = 3;
inline constexpr std::array<Tier, kTierCount> kTiers = {Tier::kDevice, Tier::kHost, Tier::kNvme};

constexpr std::string_view name_of(Tier tier) {
  constexpr std::array<std::string_view, kTierCount> kNames = {"device", "host", "nvme"};
  return kNames.at(static_cast<std::size_t>(tier));
}

// The account that a byte is charged to in the ledger.
enum class Account : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kErrors,     // of coded gradients
  kStaging,    // bytes on their way between tiers
  kWorkspace,  // scratch of kernels, constants, step inputs
  kSlack,      // kept free around transfers: left by a budget, not needed by a step
};
inline constexpr std::size_t kAccountCount = 8;

constexpr std::string_view name_of(Account account) {
  constexpr std::array<std::string_view, kAccountCount> kNames = {
      "parameters",      "gradients", "optimizer_state", "activations",
      "gradient_errors", "staging",   "workspace",       "slack"};
  return kNames.at(static_cast<std::size_t>(account));
}

}  // namespace terrace
