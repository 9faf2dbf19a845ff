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
      : draft_(draft), linear_(linear), strides_(draft.buffers.size(), 0) {
    for (const Repetition::Stride& stride : draft.strides) {
      strides_.at(stride.buffer) = stride.bytes;
      if (stride.is_of_repetitions) of_repetitions_.push_back(stride.buffer);
    }
    const Period& period = *draft.period;
    before_ = position_of(period.begin - period.length);
    found_.begin = position_of(period.begin);
    found_.end = position_of(period.end());
    behind_ = position_of(period.end() + period.length);
    found_.next.assign(draft.buffers.size(), kNoBuffer);
  }

  std::optional<RepeatedOps> run() {
    if (behind_ - found_.end != found_.end - found_.begin) return std::nullopt;
    for (std::int64_t i = found_.begin; i < found_.end; ++i) {
      if (!match(i, i + found_.end - found_.begin)) return std::nullopt;
    }
    for (BufferId b = 0; b < std::ssize(found_.next); ++b) {
      if (found_.next[b] == kNoBuffer) continue;
      if (!is_of_two(b)) return std::nullopt;
      if (is_own(b)) found_.own.push_back(b);
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
    const bool is_of_it = a.op.micro_batch < 0 || a.op.micro_batch == draft_.period->micro_batch;
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
           a.account == b.account && a.cost == b.cost && (a.micro_batch < 0) == (b.micro_batch < 0);
  }

  bool match(const Access& a, const Access& b) {
    if (a.role != b.role || a.size_bytes != b.size_bytes || a.number != b.number) return false;
    const BufferId first = linear_.stands_for.at(a.buffer);
    const BufferId second = linear_.stands_for.at(b.buffer);
    if (std::ranges::find(of_repetitions_, first) != of_repetitions_.end()) {
      return a.offset == 0 && b.offset == 0;
    }
    if (first == second) {
      const auto times = static_cast<std::size_t>(draft_.period->times);
      const bool goes_on = b.offset == a.offset + times * strides_.at(first);
      return goes_on && found_.next.at(first) == kNoBuffer;
    }
    BufferId& next = found_.next.at(first);
    if (next == kNoBuffer) next = second;
    return next == second && a.offset == b.offset &&
           draft_.buffers.at(first).size_bytes == draft_.buffers.at(second).size_bytes;
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

  bool is_own(BufferId buffer) const {
    return linear_.uses.at(buffer).first >= found_.begin &&
           linear_.lives.at(buffer) == Life::kTransient &&
           draft_.buffers.at(buffer).tier != Tier::kNvme;
  }

  const Draft& draft_;
  const LinearDraft& linear_;
  std::vector<std::size_t> strides_;  // by buffer; 0 for most
  std::vector<BufferId> of_repetitions_;
  std::int64_t before_ = 0;  // the begin of the ops of the micro-batch in front
  std::int64_t behind_ = 0;  // the end of the next micro-batch's ops
  RepeatedOps found_;
};

}  // namespace

std::optional<RepeatedOps> find_repeated_ops(const Draft& draft, const LinearDraft& linear) {
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
  for (const BufferId buffer : ops.own) repetition.own.push_back(numbers.at(buffer));
  for (BufferId b = 0; b < std::ssize(ops.next); ++b) {
    if (ops.next[b] == kNoBuffer || linear.uses[b].first >= ops.begin) continue;
    repetition.handovers.push_back({numbers.at(b), numbers.at(ops.next[b])});
  }
  return repetition;
}

}  // namespace terrace
