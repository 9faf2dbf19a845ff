#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/function_ref.h"
#include "runtime/step/compile.h"

namespace terrace {

// Names a policy of a step by the states that give way in it. HomeChoice knows which policy that
// is.
struct PolicyKey {
  MicroBatchOrder order = MicroBatchOrder::kMicroBatchMajor;
  bool recomputes_first = false;   // all units recompute before anything else gives way
  std::int32_t micro_batches = 0;  // fewer than the request's; 0: as many
  std::size_t on_device = 0;       // concessions
  std::size_t on_host = 0;

  friend auto operator<=>(const PolicyKey&, const PolicyKey&) = default;
};

// A policy that is made only when it is needed. Borrows all.
struct KeyedPolicy {
  const StepModel& model;
  PolicyKey key;
  FunctionRef<StepPolicy()> policy;
};

// Remembers how small the programs of a step are if they keep and prefetch no more than they must.
// That does not depend on the budgets. So a search over budgets asks for it again and again, and a
// step whose program fits is accepted with every larger budget. All questions to one object must be
// about one model and one request. Not thread-safe.
class Footprints {
 public:
  // Returns the bytes of each tier that are live at once: no program is packed into fewer.
  const std::array<std::size_t, kTierCount>& live_bytes(const KeyedPolicy& asked);
  // Returns the bytes of the host that the policy needs however much is kept or prefetched.
  std::size_t needed_on_host(const KeyedPolicy& asked) { return known(asked).needed_on_host; }
  // Returns whether the tiers named can be packed within their budgets.
  bool fit(const KeyedPolicy& asked, const TierBudgets& budgets, std::span<const Tier> tiers);
  // Returns the bytes of the last packing of a tier, or, where nothing was packed, the live bytes.
  std::size_t packed_bytes(const KeyedPolicy& asked, Tier tier);
  // Gives back the memory of the policy that was asked about last. The answers stay known.
  void forget_step() {
    last_.reset();
    step_.reset();
  }

 private:
  struct Packing {
    std::size_t packed_bytes = 0;
    std::size_t enough_bytes = 0;  // the packer stops when it reaches these
  };
  struct Known {
    std::array<std::size_t, kTierCount> live_bytes{};
    std::size_t needed_on_host = 0;
    std::array<std::optional<Packing>, kTierCount> packings;
  };

  Known& known(const KeyedPolicy& asked);
  const LeastStep& step(const KeyedPolicy& asked);
  bool packs_within(const KeyedPolicy& asked, Tier tier, std::size_t bytes);

  std::map<PolicyKey, Known> known_;
  std::optional<PolicyKey> last_;  // the key of step_
  std::unique_ptr<LeastStep> step_;
};

}  // namespace terrace
