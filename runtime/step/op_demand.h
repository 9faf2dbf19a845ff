#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

namespace terrace {

// The cost of an op on a machine, and what it uses of the resources that ops share.
struct OpDemand {
  enum Resource : std::uint8_t { kReading, kWriting, kDisk, kMemory, kCores, kResourceCount };

  double delay_s = 0;                          // before the work, using nothing
  double work_s = 0;                           // at full speed
  std::array<double, kResourceCount> share{};  // of each resource, at full speed
  // How much faster than other ops it gets to its full speed while resources are shared out. Small
  // demands are satisfied first: a thread that wants a quarter of a core gets it before a thread
  // that wants a whole core gets more.
  double weight = 1;
  bool waits_for_its_threads = false;  // for ops that all threads of compute work on
  double displacement = 1;             // loss of these ops for each core that this op keeps busy
};

// Returns the demand of each op of the program.
std::vector<OpDemand> demands_of(const Program& program, const MachineProfile& profile);

}  // namespace terrace
