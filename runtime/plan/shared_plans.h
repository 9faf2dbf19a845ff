#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/function_ref.h"
#include "runtime/plan/auto_placement.h"

namespace terrace {

// The plans that ranks of one process need of each other. Data-parallel ranks take the choices of
// the first of them, and the first rank of all checks its program against the programs of the other
// pipeline stages. Each plan is made once, by the rank that asks first; the others wait for it. All
// must plan for the same model and request, and may try several sizes of chunks. Thread-safe.
class SharedPlans {
 public:
  // Returns the plan of the first data-parallel rank at the model's place in the mesh, with the
  // model's chunks and within these budgets. The first caller's `make` makes it. Throws what `make`
  // threw, to every caller.
  StepPlan get(const StepModel& model, const TierBudgets& budgets, FunctionRef<StepPlan()> make);

  // Forgets all plans, because the programs of large models take much memory. Called when every
  // rank has planned.
  void clear();

 private:
  // Pipeline stage, tensor-parallel rank, elements of a chunk, budgets.
  using Question = std::tuple<std::int32_t, std::int32_t, std::int64_t, TierBudgets>;
  using Result = std::shared_future<std::shared_ptr<const StepPlan>>;

  std::mutex mutex_;
  std::map<Question, Result> plans_;  // guarded by mutex_
};

}  // namespace terrace
