#pragma once

#include "memory/device.h"
#include "parallel/communicator.h"

// What communicators of device memory must do: what those of host memory do, whose suite is
// communicator_conformance.h. Each function makes the same calls on both, of the same ranks, and
// expects the same bits. All ranks call it.
namespace terrace {

// One rank's ends. `device` has the memory of `devices`, and room for 16 MiB per rank.
struct BothMemories {
  Communicator& host;
  Communicator& devices;
  Device& device;
};

// Of fp32 and fp64 with numbers whose sums are exact, since their order is the device's own.
void expect_sums_of_host(const BothMemories& both);
void expect_moves_of_host(const BothMemories& both);
// Groups by color, in another order of the ranks.
void expect_splits_of_host(const BothMemories& both);

}  // namespace terrace
