#pragma once

#include <array>
#include <memory>

#include "runtime/step/place.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// Runs all passes: schedule, recompute, offload with the fetch plan, place, edges. The room that
// the budgets leave is used for keeping and prefetching. The program may still exceed the budgets;
// it then tells by how much. The same inputs give the same program. `base`: see ArenaPacking. A
// program with repeated ops has no edges.
Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base = nullptr);

// Does the same without edges and without names of buffers, for a caller that asks only whether the
// program fits.
Program place_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                   const Program* base = nullptr);

// Compiles a program without edges, in which nothing is kept or prefetched in any tier. The budgets
// change only the packing: a tier is packed no lower than its budget requires.
Program compile_least(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets);

// Returns whether the tier's budget suffices where everything is kept and prefetched that there is
// room for. A step that does not fit with nothing kept or prefetched may fit in this way, because
// the bytes that pass through the host then come at other times.
bool fits_with_prefetch(const StepModel& model, const StepPolicy& policy,
                        const TierBudgets& budgets, Tier tier);

// A step with nothing kept or prefetched in any tier, before it is packed. It is much quicker to
// make than a program, for a caller that asks about many policies.
class LeastStep {
 public:
  // Borrows the model.
  LeastStep(const StepModel& model, const StepPolicy& policy);
  ~LeastStep();
  LeastStep(const LeastStep&) = delete;
  LeastStep& operator=(const LeastStep&) = delete;

  // Returns the most bytes of each tier that are live at once. No program of the policy is packed
  // lower.
  std::array<std::size_t, kTierCount> live_bytes() const;
  // Returns the bytes of a tier that every fetch plan needs: the persistent buffers, and the most
  // that a single op, other than a load, uses besides them.
  std::size_t needed_bytes(Tier tier) const;
  // Returns the end of a packed tier in memory: see packed_bytes() in runtime/step/place.h.
  std::size_t packed_bytes(Tier tier, std::size_t enough_bytes) const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

// Returns the most bytes of each tier that are live at once if nothing is kept or prefetched that
// need not be. No program of the policy is packed lower. Quick, because nothing is packed.
std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy);

}  // namespace terrace
