#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

// In micro-batch-major order all micro-batches of a step do the same, except the first and the
// last. So a step of very many micro-batches has tasks only for the first few, for one in the
// middle that stands for several, and for the last few. All passes see these few. The tasks of the
// one in the middle are the period of the step. Its ops become the Repetition of the program
// (runtime/step/program.h).
namespace terrace {

struct Task;

// A micro-batch that has tasks of its own.
struct ListedMicroBatch {
  std::int32_t number = 0;
  std::int32_t times = 1;  // how many micro-batches it stands for: itself and those behind it
};

// Returns whether tasks are made for only some micro-batches of the step. That is so if there are
// very many, and if each follows the one before it.
bool has_period(const StepModel& model, const StepPolicy& policy);

// Returns all micro-batches of a step.
std::vector<ListedMicroBatch> every_micro_batch(std::int32_t micro_batches);
// Returns the micro-batches of a step that have tasks: few if it has a period, otherwise all.
std::vector<ListedMicroBatch> listed_micro_batches(const StepModel& model,
                                                   const StepPolicy& policy);

// The tasks of the micro-batch that is repeated: `length` tasks from `begin` on. The micro-batch in
// front of it and the two behind it have the same tasks.
struct Period {
  std::int32_t begin = 0;
  std::int32_t length = 0;
  std::int32_t times = 1;
  std::int32_t micro_batch = 0;  // the first for which they stand

  std::int32_t end() const { return begin + length; }
  // Returns the micro-batch that is listed behind the repeated one.
  std::int32_t next_micro_batch() const { return micro_batch + times; }
  // Returns the index of a task within its micro-batch, for the repeated micro-batch, the one in
  // front of it and the two behind it; -1 for all other tasks.
  std::int32_t position_of(std::int32_t task) const {
    const bool is_alike = begin - length <= task && task < end() + 2 * length;
    return is_alike ? (task - begin + length) % length : -1;
  }
};

// Returns the period of a step's tasks; none if every micro-batch has tasks of its own.
std::optional<Period> period_of(const std::vector<Task>& tasks);

}  // namespace terrace
