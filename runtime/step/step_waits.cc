#include "runtime/step/step_waits.h"

#include <algorithm>

namespace terrace {
namespace {

bool took_part(const OpTime& time) { return time.end_ns != 0; }

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

StepWaits::StepWaits(const Program& program)
    : program_(program), before_in_lane_(program.ops.size(), kNoOp) {
  last_of_lane_.fill(kNoOp);
  for (OpId op = 0; op < static_cast<OpId>(program.ops.size()); ++op) {
    OpId& last = last_of_lane_.at(static_cast<std::size_t>(program.ops[op].lane));
    before_in_lane_[op] = last;
    last = op;
  }
  for (auto& times : times_) times.assign(program.ops.size(), OpTime{});
}

void StepWaits::add(const RunReport& report) {
  std::swap(times_[0], times_[1]);
  times_[0].assign(report.times.begin(), report.times.end());
  for (OpId op = 0; op < static_cast<OpId>(program_.ops.size()); ++op) {
    const OpTime& time = times_[0][op];
    if (program_.ops[op].lane != Lane::kCompute || !took_part(time)) continue;
    if (compute_end_ns_ != 0 && time.start_ns > compute_end_ns_) {
      explain_gap(op, compute_end_ns_, time.start_ns);
    }
    compute_end_ns_ = std::max(compute_end_ns_, time.end_ns);
  }
}

void StepWaits::consider(Predecessor& last, OpId op, std::int32_t runs_before) const {
  if (op == kNoOp || runs_before >= static_cast<std::int32_t>(times_.size())) return;
  const OpTime& time = times_.at(static_cast<std::size_t>(runs_before))[op];
  if (took_part(time) && (last.op == kNoOp || time.end_ns > last.time.end_ns)) {
    last = {op, runs_before, time};
  }
}

Predecessor StepWaits::lane_predecessor(OpId op, std::int32_t runs_before) const {
  const OpId before = before_in_lane_[op];
  Predecessor last;
  if (before != kNoOp) {
    consider(last, before, runs_before);
  } else {
    const auto lane = static_cast<std::size_t>(program_.ops[op].lane);
    consider(last, last_of_lane_.at(lane), runs_before + 1);
  }
  return last;
}

Predecessor StepWaits::last_predecessor(OpId op, std::int32_t runs_before) const {
  Predecessor last;
  for (const Dependency& edge : program_.ops[op].after) {
    consider(last, edge.op, runs_before + edge.distance);
  }
  if (completes_in_order(program_.ops[op].lane)) {
    const Predecessor before = lane_predecessor(op, runs_before);
    if (before.op != kNoOp) consider(last, before.op, before.runs_before);
  }
  return last;
}

// Follows the chain of last predecessors back through the gap. If a transfer started late because
// the one before it in its lane did, it has waited for what that one waited for.
void StepWaits::explain_gap(OpId op, std::int64_t begin_ns, std::int64_t end_ns) {
  std::int32_t runs_before = 0;
  while (end_ns > begin_ns) {
    const Predecessor cause = last_predecessor(op, runs_before);
    if (!completes_in_order(program_.ops[op].lane)) {
      const Predecessor before = lane_predecessor(op, runs_before);
      const std::int64_t ready_ns = cause.op == kNoOp ? begin_ns : cause.time.end_ns;
      if (before.op != kNoOp && before.time.start_ns > std::max(ready_ns, begin_ns)) {
        const std::int64_t started_ns = std::min(before.time.start_ns, end_ns);
        unexplained_s_ += seconds(end_ns - started_ns);
        op = before.op;
        runs_before = before.runs_before;
        end_ns = started_ns;
        continue;
      }
    }
    if (cause.op == kNoOp || cause.time.end_ns <= begin_ns) break;
    const std::int64_t until = std::min(cause.time.end_ns, end_ns);
    const std::int64_t from = std::clamp(cause.time.start_ns, begin_ns, until);
    unexplained_s_ += seconds(end_ns - until);
    waited_s_.at(static_cast<std::size_t>(program_.ops[cause.op].lane)) += seconds(until - from);
    op = cause.op;
    runs_before = cause.runs_before;
    end_ns = from;
  }
  unexplained_s_ += seconds(end_ns - begin_ns);
}

}  // namespace terrace
