#pragma once

#include <string>

#include "base/log.h"
#include "runtime/machine/machine.h"

namespace terrace {

struct MachineMeasurement {
  std::string name;
  int threads = 1;
  std::string nvme;    // a directory on the drive to measure; empty: drives are not measured
  double seconds = 1;  // of one measurement of the drive
};

// Measures this machine, with the CPU device: products, memory, updates, and a drive. Takes some
// seconds, and about 1 GiB of memory. Each figure is from one measurement, or from the fastest of a
// few, so it is a little too good where other programs run. Throws as the store does.
Machine measure_machine(const MachineMeasurement& measurement, Log& log);

}  // namespace terrace
