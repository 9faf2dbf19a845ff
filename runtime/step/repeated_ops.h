#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

struct Draft;
struct LinearDraft;

// The ops of a list that belong to the tasks of the repeated micro-batch: [begin, end). Some are
// loads for the micro-batch behind it. As many ops behind them do the same for that micro-batch,
// with other buffers.
struct RepeatedOps {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // By buffer of the draft: the buffer that the next micro-batch has in its place; kNoBuffer if it
  // has the same one, or if no repeated op uses the buffer.
  std::vector<BufferId> next;
  // The transient buffers in memory that the repeated ops fill. Each has the same place as its
  // `next`, so the ops may be repeated at these places.
  std::vector<BufferId> own;
};

// Returns the repeated ops of a list whose draft has a period; none if they cannot be repeated.
// That is so if the ops of the next micro-batch differ, for example because other loads are issued
// under it, or if a buffer is in use for more than two micro-batches but not for all of them.
std::optional<RepeatedOps> find_repeated_ops(const Draft& draft, const LinearDraft& linear);

// Returns the repetition of a program that is made of the list. `numbers`: by buffer of the draft,
// its number in the program.
Repetition repetition_of(const Draft& draft, const LinearDraft& linear,
                         const std::vector<BufferId>& numbers);

}  // namespace terrace
