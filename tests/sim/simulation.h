#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/planted_bug.h"

namespace terrace {

struct SimOutcome {
  std::string problem;        // empty: everything was as it must be
  std::uint64_t history = 0;  // hash of all events
  // The events that the seed brought.
  int errors = 0;  // typed errors where there were faults
  int power_cuts = 0;
  int checkpoints = 0;
};

// Simulates a training of a few steps with checkpoints. Everything about it is drawn from the seed:
// program, speeds, order of events, faults of drive and file system, power cuts. After each death
// the next life resumes from the last checkpoint. Losses, norms and state must be those of training
// in memory and in order, to the bit, or the life ends in an error that a fault explains.
SimOutcome simulate(std::uint64_t seed, PlantedBug bug = PlantedBug::kNone);

}  // namespace terrace
