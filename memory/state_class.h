#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "memory/tier.h"

// The kinds of training state that have a home: a tier in which they live between uses. One table
// says how placement, ledger, ranks and reports treat each kind; docs/adding.md says how to add
// another.
namespace terrace {

enum class StateClass : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kErrors,  // what the codes of gradients have lost on the way between ranks (kernels/wire_ops.h)
};
inline constexpr std::size_t kStateClassCount = 5;

// The part of a step that uses a state, and so which units have it. States are listed by how long a
// step can do without them, the longest first. Where a tier lacks room, states give way in this
// order.
enum class StateUse : std::uint8_t {
  kUpdate,      // only the update reads and writes it; trained units
  kReduce,      // only the reduction of gradients over ranks does; trained units
  kGradient,    // made by the backward, used up by the update; trained units
  kEveryPass,   // forward and backward of each micro-batch; trained and frozen units
  kMicroBatch,  // from the forward of a micro-batch to its backward; blocks
};
inline constexpr std::array<StateUse, 5> kStateUses = {StateUse::kUpdate, StateUse::kReduce,
                                                       StateUse::kGradient, StateUse::kEveryPass,
                                                       StateUse::kMicroBatch};

inline constexpr std::int32_t kNeverDivided = std::numeric_limits<std::int32_t>::max();

struct StateClassInfo {
  StateClass state;
  std::string_view name;  // for use in sentences
  Account account;        // charged with its bytes, at home and on the way
  StateUse use;
  // The first ZeRO stage in which each data-parallel rank has only a part of it.
  std::int32_t divided_from;
};

// In the order of StateClass.
inline constexpr std::array<StateClassInfo, kStateClassCount> kStateClasses = {{
    {StateClass::kParameters, "parameters", Account::kParameters, StateUse::kEveryPass, 3},
    {StateClass::kGradients, "gradients", Account::kGradients, StateUse::kGradient, 2},
    {StateClass::kOptimizer, "optimizer state", Account::kOptimizerState, StateUse::kUpdate, 1},
    {StateClass::kActivations, "activations", Account::kActivations, StateUse::kMicroBatch,
     kNeverDivided},
    {StateClass::kErrors, "gradient errors", Account::kErrors, StateUse::kReduce, kNeverDivided},
}};

constexpr const StateClassInfo& info_of(StateClass state) {
  return kStateClasses.at(static_cast<std::size_t>(state));
}

// Returns whether the bytes charged to the account are read and written only by updates.
constexpr bool is_of_updates(Account account) {
  return std::ranges::any_of(kStateClasses, [account](const StateClassInfo& info) {
    return info.account == account && info.use == StateUse::kUpdate;
  });
}

// A value for each class.
template <typename T>
struct ByStateClass {
  std::array<T, kStateClassCount> values{};

  constexpr T& operator[](StateClass state) { return values.at(static_cast<std::size_t>(state)); }
  constexpr const T& operator[](StateClass state) const {
    return values.at(static_cast<std::size_t>(state));
  }
  constexpr void fill(const T& value) { values.fill(value); }

  friend bool operator==(const ByStateClass&, const ByStateClass&) = default;
};

}  // namespace terrace
