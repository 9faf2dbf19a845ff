#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/state_class.h"
#include "memory/tier.h"

// The reasons of a plan: why each state lives where it lives, and why activations are recomputed.
// The reasons of loads are in Program::loads.
namespace terrace {

// A state that gives way for the budget of a tier: it moves to a slower tier, or is not kept at
// all.
struct Concession {
  StateClass state = StateClass::kParameters;
  std::int32_t number = 0;  // of the group; of the unit for activations
  bool recomputes = false;  // activations are not kept
  Tier from = Tier::kDevice;
  Tier to = Tier::kHost;

  friend bool operator==(const Concession&, const Concession&) = default;
};

// The states that had to give way for the budget of a tier.
struct TierPressure {
  Tier tier = Tier::kDevice;
  std::optional<std::size_t> budget_bytes = {};
  std::vector<Concession> given_way = {};  // in order; no further than needed
  std::size_t possible = 0;                // how many states could have given way
  // The bytes of the tier that a step needs in which the last of them does not give way, with
  // nothing kept or prefetched. A lower bound; 0: nothing gave way.
  std::size_t needed_with_one_less = 0;
};

struct PlanReasons {
  bool is_known = false;          // not of a plan that keeps as little as it can
  ByStateClass<bool> is_asked{};  // the user named the tier
  bool recompute_is_asked = false;
  std::vector<TierPressure> tiers;  // the compute tier first
  // The groups whose optimizer state left the device to make room for streamed updates.
  std::vector<std::int32_t> made_room = {};
};

}  // namespace terrace
