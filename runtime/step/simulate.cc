#include "runtime/step/simulate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "runtime/step/few_repetitions.h"
#include "runtime/step/op_demand.h"

namespace terrace {
namespace {

// Returns the part that a run executes. Runs are counted from 0: the prologue, the bodies, the
// drain.
Part part_of_run(std::int32_t run, std::int32_t runs) {
  if (run == 0) return Part::kPrologue;
  return run == runs - 1 ? Part::kDrain : Part::kBody;
}

// --- shared resources -------------------------------------------------------------------------

struct Active {
  OpId op = 0;
  std::int32_t run = 0;
  double start_s = 0;
  double delay_s = 0;  // what is left
  double work_s = 0;   // what is left, at full speed
  double speed = 0;    // at which it works, at most 1
  double weight = 1;   // how much faster than others it gets to its full speed
  bool settled = false;
  const OpDemand* demand = nullptr;

  double left_s() const { return delay_s > 0 ? delay_s : work_s / speed; }
};

bool any_uses(const std::vector<Active>& active, OpDemand::Resource resource) {
  return std::ranges::any_of(active,
                             [=](const Active& one) { return one.demand->share[resource] > 0; });
}

// Returns whether the op is past its delay and works.
bool is_at_work(const Active& one) { return one.delay_s <= 0; }

// Returns whether all ops together want more cores than there are. Transfers of one direction share
// its speed, so together they want no more than one of them alone.
bool cores_are_short(const std::vector<Active>& active) {
  double reading = 0;
  double writing = 0;
  double others = 0;
  for (const Active& one : active) {
    if (!is_at_work(one)) continue;
    const double cores = one.demand->share[OpDemand::kCores];
    if (one.demand->share[OpDemand::kReading] > 0) {
      reading = std::max(reading, cores);
    } else if (one.demand->share[OpDemand::kWriting] > 0) {
      writing = std::max(writing, cores);
    } else {
      others += cores;
    }
  }
  return reading + writing + others > 1.0;
}

// Slows compute by the time that it waits for its threads that give way to other ops. Compute keeps
// at least half of its speed.
void displace_compute(std::vector<Active>& active) {
  double waited_for = 0;
  for (const Active& one : active) {
    waited_for += (one.demand->displacement - 1) * one.speed * one.demand->share[OpDemand::kCores];
  }
  for (Active& one : active) {
    if (!one.demand->waits_for_its_threads || !is_at_work(one)) continue;
    const double lost = waited_for / one.demand->share[OpDemand::kCores];
    one.speed = std::max(one.speed - lost, one.speed / 2);
  }
}

// Sets how much faster than others each op gets to its full speed. A store takes requests of both
// directions in turn, however many of one direction are in flight, so the requests of one direction
// share its weight.
void set_weights(std::vector<Active>& active) {
  const auto at_work = [&](OpDemand::Resource direction) {
    return static_cast<double>(std::ranges::count_if(active, [=](const Active& one) {
      return is_at_work(one) && one.demand->share[direction] > 0;
    }));
  };
  const double reads = at_work(OpDemand::kReading);
  const double writes = at_work(OpDemand::kWriting);
  for (Active& one : active) {
    one.weight = one.demand->weight;
    if (one.demand->share[OpDemand::kReading] > 0) one.weight /= reads;
    if (one.demand->share[OpDemand::kWriting] > 0) one.weight /= writes;
  }
}

// Sets the speeds by max-min fairness: all speeds rise together, each in proportion to its weight.
// Where a resource is used up, its users stay as they are. The disk counts as a resource only while
// reads meet writes.
void share_resources(std::vector<Active>& active) {
  std::array<double, OpDemand::kResourceCount> free;
  free.fill(1.0);
  for (Active& one : active) {
    one.speed = 0;
    one.settled = !is_at_work(one);
  }
  const bool is_mixed =
      any_uses(active, OpDemand::kReading) && any_uses(active, OpDemand::kWriting);
  set_weights(active);
  constexpr double kUsedUp = 1e-12;
  for (;;) {
    std::array<double, OpDemand::kResourceCount> wanted{};
    double rise = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < active.size(); ++i) {
      if (active[i].settled) continue;
      rise = std::min(rise, (1.0 - active[i].speed) / active[i].weight);
      for (std::size_t r = 0; r < OpDemand::kResourceCount; ++r) {
        wanted[r] += active[i].weight * active[i].demand->share[r];
      }
    }
    if (rise == std::numeric_limits<double>::infinity()) return;
    if (!is_mixed) wanted[OpDemand::kDisk] = 0;
    for (std::size_t r = 0; r < OpDemand::kResourceCount; ++r) {
      if (wanted[r] > 0) rise = std::min(rise, free[r] / wanted[r]);
    }
    for (std::size_t r = 0; r < OpDemand::kResourceCount; ++r) free[r] -= rise * wanted[r];
    for (std::size_t i = 0; i < active.size(); ++i) {
      Active& one = active[i];
      if (one.settled) continue;
      one.speed += rise * active[i].weight;
      one.settled = one.speed >= 1.0 - kUsedUp;
      for (std::size_t r = 0; r < OpDemand::kResourceCount; ++r) {
        if (one.demand->share[r] > 0 && free[r] <= kUsedUp) one.settled = true;
      }
    }
  }
}

// --- live bytes ------------------------------------------------------------------------------

// Counts the bytes of a tier between their first and their last use, piece by piece: a buffer is
// filled and given up chunk by chunk, and its space is used again in the same way.
class LiveBytes {
 public:
  LiveBytes(const Program& program, std::int32_t runs)
      : program_(program), runs_(runs), pieces_of_op_(program.ops.size()) {
    for (const Buffer& buffer : program.buffers) {
      if (buffer.life == Life::kPersistent || buffer.tier == Tier::kNvme) {
        live_.at(static_cast<std::size_t>(buffer.tier)) += buffer.size_bytes;
      }
    }
    peak_ = live_;
    cut_pieces();
  }

  void op_starts(OpId op, std::int32_t run) {
    for (const std::int32_t p : pieces_of_op_[op]) {
      Use& use = use_of(p, op, run);
      if (use.started) continue;
      use.started = true;
      use.left = touches(pieces_[p], part_of_run(run, runs_));
      std::size_t& live = live_.at(pieces_[p].tier);
      live += pieces_[p].size_bytes;
      std::size_t& peak = peak_.at(pieces_[p].tier);
      peak = std::max(peak, live);
    }
  }

  void op_ends(OpId op, std::int32_t run) {
    for (const std::int32_t p : pieces_of_op_[op]) {
      Use& use = use_of(p, op, run);
      if (--use.left > 0) continue;
      use = {};
      live_.at(pieces_[p].tier) -= pieces_[p].size_bytes;
    }
  }

  std::size_t peak(Tier tier) const { return peak_.at(static_cast<std::size_t>(tier)); }

 private:
  // One filling of a piece: by a run, or, for a carried piece, by a run for the next run.
  struct Use {
    bool started = false;
    int left = 0;  // ops that have not ended yet
  };
  struct Piece {
    std::size_t tier = 0;
    std::size_t size_bytes = 0;
    bool carried = false;
    std::array<int, kPartCount> touches{};  // how many ops touch it, by part
    std::array<Use, 4> uses{};
  };

  static int touches(const Piece& piece, Part part) {
    return piece.touches.at(static_cast<std::size_t>(piece.carried ? Part::kBody : part));
  }

  static void count_touch(const Op& op, Piece& piece) {
    for (std::size_t part = 0; part < kPartCount; ++part) {
      if (op.parts.contains(static_cast<Part>(part))) ++piece.touches.at(part);
    }
  }

  Use& use_of(std::int32_t piece, OpId op, std::int32_t run) {
    const bool of_the_one_before = pieces_[piece].carried && program_.ops[op].is_deferred();
    const std::int32_t filled_in = of_the_one_before ? run - 1 : run;
    return pieces_[piece].uses.at(static_cast<std::size_t>(filled_in) % 4);
  }

  // Where the accesses to a buffer begin and end. In most buffers all accesses are to the same
  // bytes.
  struct BufferCuts {
    std::size_t begin = 0;
    std::size_t end = 0;               // 0: not used yet
    std::int32_t whole = -1;           // the only piece, if all accesses are to the same bytes
    std::vector<std::size_t> at;       // otherwise: where pieces begin and end
    std::vector<std::int32_t> pieces;  // the piece behind each of these

    void add(const Access& access) {
      const std::size_t access_end = access.offset + access.size_bytes;
      if (end == 0) {
        begin = access.offset;
        end = access_end;
      } else if (access.offset != begin || access_end != end) {
        at.insert(at.end(), {begin, end, access.offset, access_end});
      }
    }
    void finish() {
      std::ranges::sort(at);
      at.erase(std::unique(at.begin(), at.end()), at.end());
      pieces.assign(at.size(), -1);
    }
  };

  void cut_pieces() {
    std::vector<BufferCuts> cuts(program_.buffers.size());
    for_accesses([&](OpId, const Access& access) { cuts[access.buffer].add(access); });
    for (BufferCuts& cut : cuts) cut.finish();
    for_accesses([&](OpId op, const Access& access) {
      BufferCuts& cut = cuts[access.buffer];
      if (cut.at.empty()) {
        if (cut.whole < 0) cut.whole = new_piece(access.buffer, access.size_bytes);
        return touch(op, cut.whole);
      }
      const auto first = std::ranges::lower_bound(cut.at, access.offset);
      auto at = static_cast<std::size_t>(first - cut.at.begin());
      for (; cut.at[at] < access.offset + access.size_bytes; ++at) {
        std::int32_t& piece = cut.pieces[at];
        if (piece < 0) piece = new_piece(access.buffer, cut.at[at + 1] - cut.at[at]);
        touch(op, piece);
      }
    });
    for (std::size_t i = 0; i < pieces_of_op_.size(); ++i) {
      for (const std::int32_t p : pieces_of_op_[i]) {
        count_touch(program_.ops[i], pieces_[p]);
      }
    }
  }

  std::int32_t new_piece(BufferId buffer, std::size_t size_bytes) {
    Piece piece;
    piece.tier = static_cast<std::size_t>(program_.buffers[buffer].tier);
    piece.size_bytes = size_bytes;
    piece.carried = program_.buffers[buffer].life == Life::kCarried;
    pieces_.push_back(piece);
    return static_cast<std::int32_t>(pieces_.size()) - 1;
  }

  void touch(OpId op, std::int32_t piece) {
    std::vector<std::int32_t>& touched = pieces_of_op_[op];
    if (std::ranges::find(touched, piece) == touched.end()) touched.push_back(piece);
  }

  template <typename Visit>
  void for_accesses(Visit visit) const {
    for (OpId i = 0; i < static_cast<OpId>(program_.ops.size()); ++i) {
      for (const auto* accesses : {&program_.ops[i].reads, &program_.ops[i].writes}) {
        for (const Access& access : *accesses) {
          const Buffer& buffer = program_.buffers.at(access.buffer);
          if (buffer.life == Life::kPersistent || buffer.tier == Tier::kNvme) continue;
          if (access.size_bytes != 0) visit(i, access);
        }
      }
    }
  }

  const Program& program_;
  std::int32_t runs_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::int32_t>> pieces_of_op_;
  std::array<std::size_t, kTierCount> live_{};
  std::array<std::size_t, kTierCount> peak_{};
};

// --- the lanes -------------------------------------------------------------------------------

class Simulator {
 public:
  Simulator(const FewRepetitions& few, const MachineProfile& profile, int iterations,
            std::vector<SimulatedOp>* timeline, bool counts_live_bytes)
      : program_(few.program()),
        profile_(profile),
        runs_(iterations + 1),
        timeline_(timeline),
        demands_(demands_of(program_, profile)),
        left_out_(few, runs_),
        completed_(runs_, 0),
        first_compute_s_(runs_, -1) {
    for (OpId i = 0; i < static_cast<OpId>(program_.ops.size()); ++i) {
      lane_of(program_.ops[i]).ops.push_back(i);
    }
    for (auto& side : done_) side.assign(program_.ops.size(), -1);
    if (counts_live_bytes) live_.emplace(program_, runs_);
  }

  // Runs until the steady step is known. The last step must have begun, but need not end.
  double run_until_steady() {
    const auto last = static_cast<std::size_t>(runs_ - 2);
    for (;;) {
      while (start_what_can()) {
      }
      const bool is_known = runs_ > 2 && first_compute_s_[last] >= 0;
      if (is_known) return steady_step_s();
      if (active_.empty()) break;
      pass_time();
    }
    check_all_completed();
    return steady_step_s();
  }

  SimulationResult run() {
    for (;;) {
      while (start_what_can()) {
      }
      if (active_.empty()) break;
      pass_time();
    }
    check_all_completed();
    return result();
  }

 private:
  // Checks that all ops of all runs have completed. A program whose ops wait for each other would
  // end early, and so seem quick.
  void check_all_completed() const {
    for (const std::size_t count : completed_) TERRACE_CHECK_EQ(count, program_.ops.size());
  }

  struct VirtualLane {
    std::vector<OpId> ops;
    std::size_t next = 0;  // index in `ops`
    std::int32_t run = 0;
    int in_flight = 0;
    std::size_t edges_met = 0;  // of the next op: edges before this one are known to be met
    double busy_s = 0;
  };

  VirtualLane& lane_of(const Op& op) { return lanes_.at(static_cast<std::size_t>(op.lane)); }

  bool start_what_can() {
    bool any = false;
    for (VirtualLane& lane : lanes_) {
      while (can_start(lane)) {
        start(lane);
        any = true;
      }
    }
    return any;
  }

  bool can_start(VirtualLane& lane) const {
    if (lane.ops.empty() || lane.run == runs_) return false;
    const Op& op = program_.ops[lane.ops[lane.next]];
    if (lane.in_flight >= (completes_in_order(op.lane) ? 1 : profile_.io_depth)) return false;
    if (lane.run >= 2 && !is_complete(lane.run - 2)) return false;
    for (; lane.edges_met < op.after.size(); ++lane.edges_met) {
      const Dependency& edge = op.after[lane.edges_met];
      if (!is_done(edge.op, lane.run - edge.distance)) return false;
    }
    return true;
  }

  bool is_complete(std::int32_t run) const { return completed_[run] == program_.ops.size(); }

  bool is_done(OpId op, std::int32_t run) const {
    return run < 0 || is_complete(run) || done_[run % 2][op] == run;
  }

  void start(VirtualLane& lane) {
    const OpId id = lane.ops[lane.next];
    const std::int32_t run = lane.run;
    lane.edges_met = 0;
    if (++lane.next == lane.ops.size()) {
      lane.next = 0;
      ++lane.run;
    }
    if (!program_.ops[id].parts.contains(part_of_run(run, runs_))) {
      complete(id, run);
      return;
    }
    ++lane.in_flight;
    const OpDemand& demand = demands_[id];
    active_.push_back({.op = id,
                       .run = run,
                       .start_s = now_s_,
                       .delay_s = demand.delay_s,
                       .work_s = demand.work_s,
                       .demand = &demand});
    if (live_.has_value()) live_->op_starts(id, run);
    if (program_.ops[id].lane == Lane::kCompute) compute_starts(id, run);
  }

  void compute_starts(OpId op, std::int32_t run) {
    if (first_compute_s_[run] < 0) first_compute_s_[run] = now_s_;
    if (compute_begin_s_ < 0) compute_begin_s_ = now_s_;
    if (left_out_.asks_about(op)) left_out_.compute_starts(op, run, now_s_, busy_s());
  }

  std::array<double, kLaneCount> busy_s() const {
    std::array<double, kLaneCount> busy{};
    for (std::size_t l = 0; l < kLaneCount; ++l) busy[l] = lanes_[l].busy_s;
    return busy;
  }

  void complete(OpId op, std::int32_t run) {
    done_[run % 2][op] = run;
    ++completed_[run];
  }

  // Goes on to the next moment at which something ends.
  void pass_time() {
    share_resources(active_);
    if (cores_are_short(active_)) displace_compute(active_);
    double step_s = std::numeric_limits<double>::infinity();
    for (const Active& one : active_) step_s = std::min(step_s, one.left_s());
    now_s_ += step_s;
    for (VirtualLane& lane : lanes_) {
      if (lane.in_flight > 0) lane.busy_s += step_s;
    }
    // Rounding must not leave a sliver of an op that ends at the same moment.
    const double ends_s = step_s * (1 + 1e-12);
    std::size_t going_on = 0;
    for (Active& one : active_) {
      if (one.left_s() > ends_s) {
        (one.delay_s > 0 ? one.delay_s : one.work_s) -= step_s * (one.delay_s > 0 ? 1 : one.speed);
      } else if (one.delay_s > 0 && one.work_s > 0) {
        one.delay_s = 0;
      } else {
        end(one);
        continue;
      }
      active_[going_on++] = one;
    }
    active_.resize(going_on);
  }

  void end(const Active& one) {
    const Op& op = program_.ops[one.op];
    --lane_of(op).in_flight;
    complete(one.op, one.run);
    if (live_.has_value()) live_->op_ends(one.op, one.run);
    if (op.lane == Lane::kCompute) compute_end_s_ = now_s_;
    if (timeline_ != nullptr) timeline_->push_back({one.op, one.run, one.start_s, now_s_});
  }

  SimulationResult result() const {
    SimulationResult result;
    const double left_out_s = left_out_.seconds(0, runs_);
    result.makespan_s = now_s_ + left_out_s;
    result.step_s = steady_step_s();
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      result.busy_s[l] = lanes_[l].busy_s + left_out_.busy_s(l);
      if (result.makespan_s > 0) result.busy_share[l] = result.busy_s[l] / result.makespan_s;
    }
    const auto busiest = std::max_element(result.busy_s.begin(), result.busy_s.end());
    result.bottleneck = static_cast<Lane>(busiest - result.busy_s.begin());
    const double compute_span_s = compute_end_s_ - compute_begin_s_ + left_out_s;
    if (compute_span_s > 0) {
      result.bubble_share = std::max(0.0, 1 - result.busy_s_of(Lane::kCompute) / compute_span_s);
    }
    for (const Tier tier : kTiers) {
      const TierUse& use = program_.use_of(tier);
      result.tiers.at(static_cast<std::size_t>(tier)) = {use.packed_bytes, use.live_bytes,
                                                         live_->peak(tier)};
      TERRACE_CHECK_LE(live_->peak(tier), use.packed_bytes);
    }
    return result;
  }

  // Returns the mean over the steady steps, because long and short steps can take turns.
  double steady_step_s() const {
    const std::int32_t steps = runs_ - 1;
    const std::int32_t first = steps >= 3 ? 1 : 0;
    const std::int32_t last = steps - 1;
    const bool has_compute = first_compute_s_[first] >= 0 && first_compute_s_[last] >= 0;
    if (first == last || !has_compute) return (now_s_ + left_out_.seconds(0, runs_)) / steps;
    const double listed_s = first_compute_s_[last] - first_compute_s_[first];
    return (listed_s + left_out_.seconds(first, last)) / (last - first);
  }

  const Program& program_;
  const MachineProfile& profile_;
  std::int32_t runs_;
  std::vector<SimulatedOp>* timeline_;
  std::optional<LiveBytes> live_;
  const std::vector<OpDemand> demands_;
  LeftOutTime left_out_;
  std::array<VirtualLane, kLaneCount> lanes_;
  std::vector<Active> active_;  // in the order of their starts
  // Run n uses side n % 2. By op: the last of these runs in which it is done.
  std::array<std::vector<std::int32_t>, 2> done_;
  std::vector<std::size_t> completed_;   // number of ops, by run
  std::vector<double> first_compute_s_;  // by run; -1: none yet
  double now_s_ = 0;                     // without the repetitions that are left out
  double compute_begin_s_ = -1;
  double compute_end_s_ = -1;
};

}  // namespace

std::vector<double> seconds_alone(const Program& program, const MachineProfile& profile) {
  std::vector<double> seconds;
  for (const OpDemand& demand : demands_of(program, profile)) {
    seconds.push_back(demand.delay_s + demand.work_s);
  }
  return seconds;
}

SimulationResult simulate(const Program& program, const MachineProfile& profile, int iterations,
                          std::vector<SimulatedOp>* timeline) {
  TERRACE_CHECK_LT(0, iterations);
  check_profile(profile);
  const FewRepetitions few(program);
  return Simulator(few, profile, iterations, timeline, true).run();
}

double simulated_step_s(const Program& program, const MachineProfile& profile, int iterations) {
  TERRACE_CHECK_LT(0, iterations);
  check_profile(profile);
  const FewRepetitions few(program);
  return Simulator(few, profile, iterations, nullptr, false).run_until_steady();
}

}  // namespace terrace
