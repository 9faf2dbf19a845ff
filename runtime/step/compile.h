#pragma once

#include <array>
#include <memory>

#include "runtime/step/place.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// All passes: schedule, recompute, offload with the fetch plan, place, edges. Room that the budgets
// leave is used for keeping and prefetching; the program may still exceed them, and then tells by
// how much. Same inputs, same program. `base`: see ArenaPacking.
Program compile_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                     const Program* base = nullptr);

// The same without edges and names of buffers, for whoever asks only whether it fits.
Program place_step(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets,
                   const Program* base = nullptr);

// Likewise, with nothing kept or prefetched in any tier. The program does not depend on the
// budgets, except that it is packed only as low as these.
Program compile_least(const StepModel& model, const StepPolicy& policy, const TierBudgets& budgets);

// Whether the tier's budget suffices where all is kept and prefetched that has room. A step that
// does not fit with nothing kept or prefetched may fit so: what passes through the host then comes
// at other times.
bool fits_with_prefetch(const StepModel& model, const StepPolicy& policy,
                        const TierBudgets& budgets, Tier tier);

// A step with nothing kept or prefetched in any tier, before it is packed. Much quicker to make
// than a program, for whoever asks of many policies.
class LeastStep {
 public:
  // Borrows the model.
  LeastStep(const StepModel& model, const StepPolicy& policy);
  ~LeastStep();
  LeastStep(const LeastStep&) = delete;
  LeastStep& operator=(const LeastStep&) = delete;

  // Returns the bytes of each tier that are live at once: no program of the policy is packed lower.
  std::array<std::size_t, kTierCount> live_bytes() const;
  // Returns the bytes of a tier that no fetch plan can do without: what persists, and the most that
  // one op, which is not a load, uses beside that.
  std::size_t needed_bytes(Tier tier) const;
  // Returns the end of a tier in memory: see runtime/step/place.h.
  std::size_t packed_bytes(Tier tier, std::size_t enough_bytes) const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

// Returns the bytes of each tier that are live at once with nothing kept or prefetched that need
// not be: no program of the policy is packed lower. Quicker still, as nothing is packed.
std::array<std::size_t, kTierCount> least_live_bytes(const StepModel& model,
                                                     const StepPolicy& policy);

}  // namespace terrace
