#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

struct Draft;
struct LinearDraft;

// The ops of the tasks of the repeated micro-batch: [begin, end) of a list. They include loads that
// are issued early for the next micro-batch. The same number of ops follows, which do the same for
// the next micro-batch with other buffers.
struct RepeatedOps {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // By buffer of the draft: the buffer that the next micro-batch uses instead; kNoBuffer if it uses
  // the same one, if no repeated op uses the buffer, or if the buffer has a piece for each
  // repetition.
  std::vector<BufferId> next;
  // The transient buffers in memory that the repeated ops fill. Each has the same place as its
  // `next`, so the ops may be repeated at these places.
  std::vector<BufferId> filled;
  std::vector<bool> is_filled;       // by buffer
  std::vector<bool> follows_filled;  // by buffer: whether it is `next` of a filled one

  // Returns whether two buffers have this buffer's place, one of them one micro-batch later.
  bool shares_place(BufferId buffer) const {
    const auto b = static_cast<std::size_t>(buffer);
    return is_filled[b] || follows_filled[b];
  }
};

// Returns the repeated ops of a list; none if its draft has no period, or if they cannot be
// repeated. They cannot be repeated if the ops of the next micro-batch differ, for example because
// other loads are issued during it, or if a buffer is in use for more than two micro-batches but
// not for all of them.
std::optional<RepeatedOps> find_repeated_ops(const Draft& draft, const LinearDraft& linear);

// Returns the repetition of a program that is made of the list. `numbers`: by buffer of the draft,
// its number in the program.
Repetition repetition_of(const Draft& draft, const LinearDraft& linear,
                         const std::vector<BufferId>& numbers);

}  // namespace terrace
