#include "tests/sim/sim_executor.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

class SimExecutor::LaneHost final : public Actor {
 public:
  LaneHost(SimExecutor& owner, const Program& program, const Parts& parts, Lane lane,
           std::int64_t issue_ns)
      : owner_(owner), program_(program), parts_(parts), lane_(lane), issue_ns_(issue_ns) {
    parts_.time.add(*this);
  }
  ~LaneHost() override { parts_.time.remove(*this); }
  LaneHost(const LaneHost&) = delete;
  LaneHost& operator=(const LaneHost&) = delete;

  std::optional<std::int64_t> due_ns() override {
    if (run_ > owner_.started_) return std::nullopt;
    const OpId op = owner_.issuer_.lane_ops(lane_).at(next_);
    if (!drive_has_room(program_.ops[op]) || !owner_.issuer_.can_issue(op, run_)) {
      due_ns_.reset();
      return std::nullopt;
    }
    if (!due_ns_.has_value()) {
      due_ns_ = parts_.time.now_ns() + parts_.time.draw_latency(issue_ns_);
    }
    return due_ns_;
  }

  void act() override {
    due_ns_.reset();
    const std::vector<OpId>& ops = owner_.issuer_.lane_ops(lane_);
    owner_.issuer_.issue(ops.at(next_), run_);
    if (++next_ < ops.size()) return;
    next_ = 0;
    ++run_;
  }

 private:
  // Returns whether the drives have room for an op. A thread would wait in submit() here.
  bool drive_has_room(const Op& op) const {
    if (lane_ != Lane::kRead && lane_ != Lane::kWrite) return true;
    const Access& memory = lane_ == Lane::kRead ? op.writes.front() : op.reads.front();
    const std::size_t pieces = divide_up(memory.size_bytes, parts_.store.block_bytes());
    TERRACE_CHECK_LE(pieces, parts_.drive_depth);
    return std::ranges::all_of(parts_.drives, [&](const auto& drive) {
      return drive->in_flight() + pieces <= parts_.drive_depth;
    });
  }

  SimExecutor& owner_;
  const Program& program_;
  const Parts parts_;
  const Lane lane_;
  const std::int64_t issue_ns_;
  std::int64_t run_ = 1;
  std::size_t next_ = 0;
  std::optional<std::int64_t> due_ns_;  // of the next op, while it can be issued
};

SimExecutor::SimExecutor(const Program& program, const ExecutorMemory& memory, const Parts& parts,
                         std::int64_t issue_ns)
    : time_(parts.time),
      issuer_(program, memory, {parts.device, &parts.store, parts.bodies, parts.time}) {
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const Lane lane = static_cast<Lane>(l);
    if (issuer_.lane_ops(lane).empty()) continue;
    hosts_.push_back(std::make_unique<LaneHost>(*this, program, parts, lane, issue_ns));
  }
}

SimExecutor::~SimExecutor() = default;

void SimExecutor::start(Part part, const RunInput& input) {
  TERRACE_CHECK_LT(runs_in_flight(), 2);
  ++started_;
  issuer_.begin(started_, part, input);
}

RunReport SimExecutor::retire() {
  TERRACE_CHECK_LT(0, runs_in_flight());
  const std::int64_t run = retired_ + 1;
  time_.run_until([&] { return issuer_.has_completed(run); });
  retired_ = run;
  return issuer_.retire(run);
}

}  // namespace terrace
