#include "runtime/plan/shared_plans.h"

#include <exception>

namespace terrace {

StepPlan SharedPlans::get(const StepModel& model, const TierBudgets& budgets,
                          FunctionRef<StepPlan()> make) {
  std::promise<std::shared_ptr<const StepPlan>> promise;
  Result result;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = plans_.try_emplace(
        {model.pipeline.stage, model.tensor.rank, model.chunk_elements, budgets});
    if (is_new) entry->second = promise.get_future().share();
    is_first = is_new;
    result = entry->second;
  }
  if (is_first) {
    try {
      promise.set_value(std::make_shared<const StepPlan>(make()));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }
  return *result.get();
}

void SharedPlans::clear() {
  const std::lock_guard lock(mutex_);
  plans_.clear();
}

}  // namespace terrace
