#include "bench/norm_wait.h"

#include <algorithm>
#include <array>
#include <vector>

namespace terrace {
namespace {

using Marks = std::vector<bool>;  // by op

// Returns the marked ops, and the ops that wait for a marked one, which is in `before` (the
// iteration before) or in `here`. Ops of a lane start in their order, so the ops behind such an op
// wait too.
Marks waiting(const Program& program, const Marks& before, Marks here) {
  std::array<bool, kLaneCount> lane_waits{};
  const auto lane_of = [&](std::size_t i) { return static_cast<std::size_t>(program.ops[i].lane); };
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i]) lane_waits[lane_of(i)] = true;
  }
  for (std::size_t i = 0; i < here.size(); ++i) {
    const bool waits = std::ranges::any_of(program.ops[i].after, [&](const Dependency& one) {
      const auto at = static_cast<std::size_t>(one.op);
      return one.distance == 0 ? here[at] : before[at];
    });
    if (waits || lane_waits[lane_of(i)]) here[i] = true;
    if (here[i]) lane_waits[lane_of(i)] = true;
  }
  return here;
}

// Returns the marked ops, and the ops of the same iteration that they wait for.
Marks awaited(const Program& program, Marks marks) {
  std::array<bool, kLaneCount> lane_awaited{};
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    const auto lane = static_cast<std::size_t>(op.lane);
    if (completes_in_order(op.lane) && lane_awaited[lane]) marks[i] = true;
    if (!marks[i]) continue;
    lane_awaited[lane] = true;
    for (const Dependency& one : op.after) {
      if (one.distance == 0) marks[static_cast<std::size_t>(one.op)] = true;
    }
  }
  return marks;
}

Marks only_last(const Program& program, OpKind kind) {
  Marks marks(program.ops.size());
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    if (program.ops[i].kind != kind) continue;
    marks[i] = true;
    break;
  }
  return marks;
}

}  // namespace

double bytes_behind_norm(const Program& program) {
  const Marks none(program.ops.size());
  const Marks of_the_norm = waiting(program, none, only_last(program, OpKind::kNormFinish));
  const Marks held = waiting(program, of_the_norm, none);
  const Marks needed = awaited(program, only_last(program, OpKind::kForward));
  double bytes = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const bool moves = is_of_kind(op.lane, LaneKind::kDrive);
    if (moves && held[i] && needed[i]) bytes += op.cost.bytes;
  }
  return bytes;
}

}  // namespace terrace
