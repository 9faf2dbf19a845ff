#include "runtime/step/period.h"

#include <algorithm>

#include "base/check.h"
#include "runtime/step/schedule.h"

namespace terrace {
namespace {

// The fewest micro-batches of a step that has a period. A step of fewer is planned quickly anyway.
constexpr std::int32_t kFewestMicroBatches = 64;

// How many micro-batches are listed in front of the repeated one and behind it. The first assigns
// gradients and runs under the updates of the step before. The last one's gradients go home. Loads
// go up to a micro-batch ahead, so of the others one is listed in front of the repeated micro-batch
// and two behind it: the loads that the repeated one and the next one issue are then the same.
constexpr std::int32_t kListedBefore = 2;
constexpr std::int32_t kListedBehind = 3;

bool are_alike(const Task& a, const Task& b) {
  return a.kind == b.kind && a.message == b.message && a.unit == b.unit && a.group == b.group &&
         a.chunk == b.chunk && a.steps == b.steps && a.parts == b.parts && a.use == b.use;
}

}  // namespace

bool has_period(const StepModel& model, const StepPolicy& policy) {
  return policy.order == MicroBatchOrder::kMicroBatchMajor &&
         policy.micro_batches >= kFewestMicroBatches && model.tasks.empty() &&
         model.pipeline.stages == 1 && !model.tensor.shares_rows;
}

std::vector<ListedMicroBatch> every_micro_batch(std::int32_t micro_batches) {
  std::vector<ListedMicroBatch> listed;
  listed.reserve(static_cast<std::size_t>(micro_batches));
  for (std::int32_t m = 0; m < micro_batches; ++m) listed.push_back({m});
  return listed;
}

std::vector<ListedMicroBatch> listed_micro_batches(const StepModel& model,
                                                   const StepPolicy& policy) {
  std::vector<ListedMicroBatch> listed = every_micro_batch(policy.micro_batches);
  if (!has_period(model, policy)) return listed;
  const auto first = listed.begin() + kListedBefore;
  const auto behind = listed.end() - kListedBehind;
  first->times = static_cast<std::int32_t>(behind - first);
  listed.erase(first + 1, behind);
  return listed;
}

std::optional<Period> period_of(const std::vector<Task>& tasks) {
  const auto is_repeated = [](const Task& task) { return task.times > 1; };
  const auto first = std::ranges::find_if(tasks, is_repeated);
  if (first == tasks.end()) return std::nullopt;
  const auto behind = std::find_if_not(first, tasks.end(), is_repeated);
  const Period period{static_cast<std::int32_t>(first - tasks.begin()),
                      static_cast<std::int32_t>(behind - first), first->times, first->micro_batch};
  for (std::int32_t t = period.begin - period.length; t < period.end() + period.length; ++t) {
    TERRACE_CHECK(are_alike(tasks.at(static_cast<std::size_t>(t)),
                            tasks.at(static_cast<std::size_t>(t + period.length))));
  }
  return period;
}

}  // namespace terrace
