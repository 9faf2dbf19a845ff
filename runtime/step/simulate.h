#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

// Runs a program on virtual lanes with a virtual clock. Lanes, edges and parts are the same as in
// the lane executor; durations come from a machine profile. Deterministic.
namespace terrace {

struct SimulatedOp {
  OpId op = 0;
  std::int32_t run = 0;  // from 0: the prologue, then the bodies, then the drain
  double start_s = 0;
  double end_s = 0;

  friend bool operator==(const SimulatedOp&, const SimulatedOp&) = default;
};

struct SimulatedTier {
  std::size_t packed_bytes = 0;   // the arena, as in the program
  std::size_t planned_bytes = 0;  // the most that is live at once, by the place pass
  // The most that was live at any event of the simulation. Only simulated repetitions count.
  std::size_t live_peak_bytes = 0;

  friend bool operator==(const SimulatedTier&, const SimulatedTier&) = default;
};

struct SimulationResult {
  double makespan_s = 0;  // all steps, with the first fetches and the last updates
  // The time of one step in the steady state: the mean distance between the first compute ops of
  // consecutive bodies. With fewer than two bodies the prologue counts as one, and for a single
  // step this is the makespan.
  double step_s = 0;
  std::array<double, kLaneCount> busy_s{};  // for reads and writes: while at least one is in flight
  std::array<double, kLaneCount> busy_share{};  // of the makespan
  Lane bottleneck = Lane::kCompute;             // the busiest lane; the first of equal ones
  // The share of the time from the first compute op to the last in which nothing computes.
  double bubble_share = 0;
  std::array<SimulatedTier, kTierCount> tiers{};

  double busy_s_of(Lane lane) const { return busy_s.at(static_cast<std::size_t>(lane)); }
  double busy_share_of(Lane lane) const { return busy_share.at(static_cast<std::size_t>(lane)); }
  const SimulatedTier& tier(Tier tier) const { return tiers.at(static_cast<std::size_t>(tier)); }

  friend bool operator==(const SimulationResult&, const SimulationResult&) = default;
};

// Returns how long each op of a program takes with nothing else going on.
std::vector<double> seconds_alone(const Program& program, const MachineProfile& profile);

// Runs `iterations` steps: the prologue, the bodies and the drain, with at most two runs in flight.
// Ops at work at the same time share the disk, the cores and the host's memory. While these
// suffice, each op goes at full speed. A resource that does not suffice is shared out evenly among
// lanes, with two exceptions. Threads that want little of a core have it first (op_demand.h).
// Compute then waits for its slowest thread (machine_profile.h), until it has lost half of its
// speed.
//
// If the program has repeated ops, a few repetitions are run. The others are taken to be like the
// last of these.
//
// The program must be one that verify() accepts; live bytes then never exceed the arena. If
// `timeline` is given, the ops that took part are appended to it in the order of their ends; their
// numbers are those of FewRepetitions(program).program() (few_repetitions.h), without the
// repetitions that are left out. Throws ConfigError for an impossible profile.
SimulationResult simulate(const Program& program, const MachineProfile& profile, int iterations,
                          std::vector<SimulatedOp>* timeline = nullptr);

// Returns the step_s that simulate() finds, in less time: the simulation ends once it is known.
double simulated_step_s(const Program& program, const MachineProfile& profile, int iterations);

}  // namespace terrace
