#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

// Runs a program on virtual lanes with a virtual clock: the same lanes, edges and parts as the lane
// executor, with durations from a machine profile. Deterministic.
namespace terrace {

struct SimulatedOp {
  OpId op = 0;
  std::int32_t run = 0;  // from 0: the prologue, then the bodies, then the drain
  double start_s = 0;
  double end_s = 0;

  friend bool operator==(const SimulatedOp&, const SimulatedOp&) = default;
};

struct SimulatedTier {
  std::size_t packed_bytes = 0;     // the arena, as in the program
  std::size_t planned_bytes = 0;    // the most that the place pass has live at once
  std::size_t live_peak_bytes = 0;  // the most that was live at any event of the simulation

  friend bool operator==(const SimulatedTier&, const SimulatedTier&) = default;
};

struct SimulationResult {
  double makespan_s = 0;  // all steps, with the first fetches and the last updates
  // One step in the steady state: the mean distance between the first compute ops of consecutive
  // bodies, of fewer than two bodies from the prologue's on, of a single step the makespan.
  double step_s = 0;
  std::array<double, kLaneCount> busy_s{};      // reads and writes: while at least one is in flight
  std::array<double, kLaneCount> busy_share{};  // of the makespan
  Lane bottleneck = Lane::kCompute;             // the busiest lane; of equal ones the first
  double bubble_share = 0;  // of the time from the first compute to the last: what computes nothing
  std::array<SimulatedTier, kTierCount> tiers{};

  double busy_s_of(Lane lane) const { return busy_s.at(static_cast<std::size_t>(lane)); }
  double busy_share_of(Lane lane) const { return busy_share.at(static_cast<std::size_t>(lane)); }
  const SimulatedTier& tier(Tier tier) const { return tiers.at(static_cast<std::size_t>(tier)); }

  friend bool operator==(const SimulationResult&, const SimulationResult&) = default;
};

// How long each op of a program takes with nothing else going on.
std::vector<double> seconds_alone(const Program& program, const MachineProfile& profile);

// `iterations` steps: the prologue, bodies, and the drain, two runs in flight at most. Ops at work
// at the same time share disk, cores and host memory: each goes at full speed while they suffice.
// What does not is shared out evenly among lanes, but that threads which want little of a core have
// it first (op_demand.h), and compute then waits for its slowest thread (machine_profile.h), until
// it has lost half of its speed. The program is one that verify()
// accepts: live bytes never exceed the arena. If `timeline` is given, the ops that took part are
// appended in the order of their ends. Throws ConfigError for an impossible profile.
SimulationResult simulate(const Program& program, const MachineProfile& profile, int iterations,
                          std::vector<SimulatedOp>* timeline = nullptr);

// Returns the step_s of that result, in less time: the simulation ends where it is known.
double simulated_step_s(const Program& program, const MachineProfile& profile, int iterations);

}  // namespace terrace
