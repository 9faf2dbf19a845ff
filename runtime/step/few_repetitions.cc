#include "runtime/step/few_repetitions.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace terrace {
namespace {

// Enough that the updates under the first micro-batches no longer slow down the last of them.
constexpr std::int32_t kListed = 8;

}  // namespace

FewRepetitions::FewRepetitions(const Program& program) : few_(program, kListed) {
  const Repetition& repetition = program.repetition;
  if (repetition.times <= kListed) return;
  left_out_ = repetition.times - kListed;
  const OpId length = repetition.end - repetition.begin;
  first_of_last_ = first_compute(repetition.begin + (kListed - 1) * length);
  first_behind_ = first_compute(repetition.begin + kListed * length);
}

OpId FewRepetitions::first_compute(OpId from) const {
  const std::vector<Op>& ops = program().ops;
  const auto found = std::find_if(ops.begin() + from, ops.end(),
                                  [](const Op& op) { return op.lane == Lane::kCompute; });
  TERRACE_CHECK(found != ops.end());
  return static_cast<OpId>(found - ops.begin());
}

void LeftOutTime::compute_starts(OpId op, std::int32_t run, double now_s,
                                 const LaneSeconds& busy_s) {
  if (op == few_.first_of_last()) {
    begin_s_ = now_s;
    busy_before_s_ = busy_s;
    return;
  }
  seconds_.at(static_cast<std::size_t>(run)) = few_.left_out() * (now_s - begin_s_);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    busy_s_[l] += few_.left_out() * (busy_s[l] - busy_before_s_[l]);
  }
}

double LeftOutTime::seconds(std::int32_t first, std::int32_t last) const {
  return std::accumulate(seconds_.begin() + first, seconds_.begin() + last, 0.0);
}

}  // namespace terrace
