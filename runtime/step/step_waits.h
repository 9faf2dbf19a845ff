#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/step/lane_executor.h"

// What the ops of executed steps waited for, read from their times and the program's edges.
namespace terrace {

inline constexpr OpId kNoOp = -1;

// An op that another waited for, and when it was at work.
struct Predecessor {
  OpId op = kNoOp;
  std::int32_t runs_before = 0;  // 0: of the same run
  OpTime time;
};

// Looks at runs in the order they were retired; each is understood with the one before it.
class StepWaits {
 public:
  // Borrows the program.
  explicit StepWaits(const Program& program);

  void add(const RunReport& report);
  // What is done until the next run, an evaluation or a checkpoint, is no gap of a step.
  void leave_out_until_next_run() { compute_end_ns_ = 0; }

  // Of the run last added: what ended last of all that `op` waited for, its lane's order included.
  // No op if it waited for nothing that took part.
  Predecessor last_predecessor(OpId op) const { return last_predecessor(op, 0); }

  // Seconds the compute lane stood still between ops, in all runs added, by the lane that was at
  // work on what the next op waited for: the chain of what each in turn waited for, followed back
  // through the gap.
  double waited_s(Lane lane) const { return waited_s_.at(static_cast<std::size_t>(lane)); }
  // The part of the gaps in which nothing of that chain was at work: starting ops, and whatever is
  // done between steps.
  double unexplained_s() const { return unexplained_s_; }

 private:
  Predecessor last_predecessor(OpId op, std::int32_t runs_before) const;
  void consider(Predecessor& last, OpId op, std::int32_t runs_before) const;
  // The op before it in its lane, if that has taken part.
  Predecessor lane_predecessor(OpId op, std::int32_t runs_before) const;
  void explain_gap(OpId op, std::int64_t begin_ns, std::int64_t end_ns);

  const Program& program_;
  std::vector<OpId> before_in_lane_;             // per op; kNoOp for a lane's first
  std::array<OpId, kLaneCount> last_of_lane_{};  // kNoOp for a lane without ops
  std::array<std::vector<OpTime>, 2> times_;     // of the run last added, and the one before
  std::int64_t compute_end_ns_ = 0;
  std::array<double, kLaneCount> waited_s_{};
  double unexplained_s_ = 0;
};

}  // namespace terrace
