#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/tier.h"

namespace terrace {

// The reason why a load is not issued earlier than it is.
enum class LoadLimit : std::uint8_t {
  kStays,      // there is no load: the bytes stay where they are since the use before
  kLookahead,  // it is as early as the lookahead allows
  kSource,     // its source is not ready earlier
  kStepStart,  // the step begins there, or the loads of its first updates come before
  kRoom,       // a tier has no room for its bytes any earlier
};

// The outcome of one load of a step. It is kept for people who ask for the reasons of a plan.
struct LoadNote {
  std::int32_t unit = -1;
  std::int32_t times = 1;         // for how many micro-batches it is made
  std::int32_t visits_ahead = 0;  // how many visits to units earlier than needed it is issued
  Account account = Account::kParameters;
  bool is_for_update = false;
  LoadLimit limit = LoadLimit::kLookahead;
  // With kRoom: the tier without room, and the bytes that it lacks for the load one visit earlier.
  Tier tier = Tier::kHost;
  std::size_t lacking_bytes = 0;

  friend bool operator==(const LoadNote&, const LoadNote&) = default;
};

}  // namespace terrace
