#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/step/lane_executor.h"

// Finds what the ops of executed steps waited for, from their times and the program's edges.
namespace terrace {

inline constexpr OpId kNoOp = -1;

// An op that another op waited for, and when it was at work.
struct Predecessor {
  OpId op = kNoOp;
  std::int32_t runs_before = 0;  // 0: in the same run
  OpTime time;
};

// Looks at runs in the order in which they were retired. Each run is understood with the one before
// it.
class StepWaits {
 public:
  // Borrows the program.
  explicit StepWaits(const Program& program);

  void add(const RunReport& report);
  // Leaves out the time until the next run: an evaluation or a checkpoint is not a gap of a step.
  void leave_out_until_next_run() { compute_end_ns_ = 0; }

  // Returns the op that ended last of all that `op` waited for in the run added last. The op before
  // it counts too if their lane completes in order. Returns kNoOp if `op` waited for nothing that
  // took part.
  Predecessor last_predecessor(OpId op) const { return last_predecessor(op, 0); }

  // Returns the seconds, in all runs added, that the compute lane stood still between ops while
  // this lane was at work on ops that the next compute op waited for. These are found by following
  // the chain of waits back through the gap.
  double waited_s(Lane lane) const { return waited_s_.at(static_cast<std::size_t>(lane)); }
  // Returns the seconds of the gaps in which nothing of that chain was at work: the time that
  // starting ops takes, and whatever is done between steps.
  double unexplained_s() const { return unexplained_s_; }

 private:
  Predecessor last_predecessor(OpId op, std::int32_t runs_before) const;
  void consider(Predecessor& last, OpId op, std::int32_t runs_before) const;
  // Returns the op before it in its lane, if that op has taken part.
  Predecessor lane_predecessor(OpId op, std::int32_t runs_before) const;
  void explain_gap(OpId op, std::int64_t begin_ns, std::int64_t end_ns);

  const Program& program_;
  std::vector<OpId> before_in_lane_;             // per op; kNoOp for a lane's first
  std::array<OpId, kLaneCount> last_of_lane_{};  // kNoOp for a lane without ops
  std::array<std::vector<OpTime>, 2> times_;     // of the run added last, and of the one before
  std::int64_t compute_end_ns_ = 0;
  std::array<double, kLaneCount> waited_s_{};
  double unexplained_s_ = 0;
};

}  // namespace terrace
