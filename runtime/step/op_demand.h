#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/machine_profile.h"
#include "runtime/step/program.h"

namespace terrace {

// What an op of a program costs on a machine, and what it uses of what ops share.
struct OpDemand {
  enum Resource : std::uint8_t { kReading, kWriting, kDisk, kMemory, kCores, kResourceCount };

  double delay_s = 0;                          // before the work, using nothing
  double work_s = 0;                           // at full speed
  std::array<double, kResourceCount> share{};  // of each resource, at full speed
  // How much faster than others it gets to its full speed while resources are shared out. A thread
  // that wants a quarter of a core has it before one that wants a whole core has more.
  double weight = 1;
  bool waits_for_its_threads = false;  // ops that all threads of compute work on
  double displacement = 1;             // what these lose for each core that it keeps busy
};

// By op.
std::vector<OpDemand> demands_of(const Program& program, const MachineProfile& profile);

}  // namespace terrace
