#include "runtime/step/repeated_ops.h"

#include <algorithm>

#include "base/check.h"
#include "runtime/step/linear_draft.h"

namespace terrace {
namespace {

// Compares the ops of the repeated micro-batch with the ops of the next one.
class RepeatedOpsFinder {
 public:
  RepeatedOpsFinder(const Draft& draft, const LinearDraft& linear)
      : draft_(draft),
        linear_(linear),
        strides_(draft.buffers.size()),
        found_at_(draft.buffers.size(), kNoBuffer),
        stands_at_(draft.buffers.size(), kNoBuffer) {
    for (const Repetition::Stride& stride : draft.strides) strides_.at(stride.buffer) = stride;
    const Period& period = *draft.period;
    before_ = position_of(period.begin - period.length);
    found_.begin = position_of(period.begin);
    found_.end = position_of(period.end());
    behind_ = position_of(period.end() + period.length);
    found_.next.assign(draft.buffers.size(), kNoBuffer);
    found_.is_filled.assign(draft.buffers.size(), false);
    found_.follows_filled.assign(draft.buffers.size(), false);
  }

  std::optional<RepeatedOps> run() {
    if (behind_ - found_.end != found_.end - found_.begin) return std::nullopt;
    for (std::int64_t i = found_.begin; i < found_.end; ++i) {
      if (!match(i, i + found_.end - found_.begin)) return std::nullopt;
    }
    for (BufferId b = 0; b < std::ssize(found_at_); ++b) {
      const bool is_same = found_at_[b] == kNoBuffer || found_at_[b] == b;
      if (is_same || strides_[b].is_of_repetitions) continue;
      found_.next[b] = found_at_[b];
      if (!is_of_two(b)) return std::nullopt;
      if (fills(b)) add_filled(b);
    }
    return std::move(found_);
  }

 private:
  // Returns the position of the first op at the task or behind it.
  std::int64_t position_of(std::int32_t task) const {
    return std::ranges::lower_bound(linear_.tasks, task) - linear_.tasks.begin();
  }

  bool match(std::int64_t first, std::int64_t second) {
    const DraftOp& a = *linear_.ops[first];
    const DraftOp& b = *linear_.ops[second];
    const auto of_a = draft_.all(a);
    const auto of_b = draft_.all(b);
    const Period& period = *draft_.period;
    const bool is_of_it = a.op.micro_batch < 0 ? b.op.micro_batch < 0
                                               : a.op.micro_batch == period.micro_batch &&
                                                     b.op.micro_batch == period.next_micro_batch();
    const bool are_alike = is_of_it && are_one_kind(a.op, b.op) && a.reads == b.reads &&
                           of_a.size() == of_b.size() &&
                           linear_.parts[first] == linear_.parts[second];
    if (!are_alike) return false;
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      if (!match(of_a[i], of_b[i])) return false;
    }
    return true;
  }

  static bool are_one_kind(const Op& a, const Op& b) {
    return a.kind == b.kind && a.message == b.message && a.lane == b.lane && a.step == b.step &&
           a.unit == b.unit && a.group == b.group && a.chunk == b.chunk && a.use == b.use &&
           a.account == b.account && a.cost == b.cost;
  }

  bool match(const Access& a, const Access& b) {
    if (a.role != b.role || a.size_bytes != b.size_bytes || a.number != b.number) return false;
    const BufferId first = linear_.stands_for.at(a.buffer);
    const BufferId second = linear_.stands_for.at(b.buffer);
    if (!correspond(first, second)) return false;
    const Repetition::Stride& stride = strides_.at(first);
    if (stride.is_of_repetitions) return a.offset == 0 && b.offset == 0 && first != second;
    if (first != second) {
      return a.offset == b.offset &&
             draft_.buffers.at(first).size_bytes == draft_.buffers.at(second).size_bytes;
    }
    return b.offset == a.offset + static_cast<std::size_t>(draft_.period->times) * stride.bytes;
  }

  // Notes that the next micro-batch has `second` where this one has `first`. Returns false if
  // either was found with another buffer before.
  bool correspond(BufferId first, BufferId second) {
    BufferId& found = found_at_.at(first);
    BufferId& stands = stands_at_.at(second);
    if (found == kNoBuffer && stands == kNoBuffer) {
      found = second;
      stands = first;
    }
    return found == second && stands == first;
  }

  // Returns whether a buffer that the next micro-batch has another one for is used under one
  // micro-batch and the one behind it alone, and before the use of that other buffer begins, which
  // is one micro-batch later.
  bool is_of_two(BufferId buffer) const {
    const BufferUse& use = linear_.uses.at(buffer);
    const std::int64_t first_of_next = linear_.uses.at(found_.next[buffer]).first;
    if (first_of_next <= use.last) return false;
    if (use.first >= found_.begin) return use.last < behind_ && first_of_next >= found_.end;
    return use.first >= before_ && use.last < found_.end && first_of_next < found_.end;
  }

  // Returns whether the repeated ops fill the buffer, and it is a place in memory that others may
  // have.
  bool fills(BufferId buffer) const {
    return linear_.uses.at(buffer).first >= found_.begin &&
           linear_.lives.at(buffer) == Life::kTransient &&
           draft_.buffers.at(buffer).tier != Tier::kNvme;
  }

  void add_filled(BufferId buffer) {
    found_.filled.push_back(buffer);
    found_.is_filled[buffer] = true;
    found_.follows_filled[found_.next[buffer]] = true;
  }

  const Draft& draft_;
  const LinearDraft& linear_;
  std::vector<Repetition::Stride> strides_;  // by buffer; of 0 bytes for most
  // By buffer: what the next micro-batch has where this one has the buffer, and the other way
  // round.
  std::vector<BufferId> found_at_;
  std::vector<BufferId> stands_at_;
  std::int64_t before_ = 0;  // the begin of the ops of the micro-batch in front
  std::int64_t behind_ = 0;  // the end of the next micro-batch's ops
  RepeatedOps found_;
};

}  // namespace

std::optional<RepeatedOps> find_repeated_ops(const Draft& draft, const LinearDraft& linear) {
  if (!draft.period.has_value()) return std::nullopt;
  return RepeatedOpsFinder(draft, linear).run();
}

Repetition repetition_of(const Draft& draft, const LinearDraft& linear,
                         const std::vector<BufferId>& numbers) {
  const RepeatedOps& ops = *linear.repeated;
  Repetition repetition{.begin = static_cast<OpId>(ops.begin),
                        .end = static_cast<OpId>(ops.end),
                        .times = draft.period->times};
  for (Repetition::Stride stride : draft.strides) {
    stride.buffer = numbers.at(stride.buffer);
    repetition.strides.push_back(stride);
  }
  for (const BufferId buffer : ops.filled) repetition.filled.push_back(numbers.at(buffer));
  for (BufferId b = 0; b < std::ssize(ops.next); ++b) {
    if (ops.next[b] == kNoBuffer || linear.uses[b].first >= ops.begin) continue;
    repetition.handovers.push_back({numbers.at(b), numbers.at(ops.next[b])});
  }
  return repetition;
}

}  // namespace terrace
