#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/planted_bug.h"

namespace terrace {

struct SimOutcome {
  std::string problem;        // empty: all was as it must be
  std::uint64_t history = 0;  // hash of all that happened
  // What the seed brought.
  int errors = 0;  // typed ones, where faults were
  int power_cuts = 0;
  int checkpoints = 0;
};

// A training of a few steps with checkpoints, everything about it drawn from the seed: program,
// speeds, order of events, faults of drive and file system, power cuts; after each death the next
// life resumes from the last checkpoint. Losses, norms and state must be those of training in
// memory and in order, to the bit, or the life ends in an error that a fault explains.
SimOutcome simulate(std::uint64_t seed, PlantedBug bug = PlantedBug::kNone);

}  // namespace terrace
