#pragma once

#include "memory/device.h"
#include "parallel/communicator.h"

// The behaviour required of communicators of device memory. It is the same as for host memory,
// whose suite is communicator_conformance.h. Each function makes the same calls on both kinds of
// communicator, with the same ranks, and expects the same bits. All ranks call it.
namespace terrace {

// One rank's ends of both communicators. `device` has the memory of `devices`, and room for 16 MiB
// per rank.
struct BothMemories {
  Communicator& host;
  Communicator& devices;
  Device& device;
};

// Uses numbers whose sums are exact for fp32 and fp64, because the device adds those in an order of
// its own.
void expect_sums_of_host(const BothMemories& both);
void expect_moves_of_host(const BothMemories& both);
// Makes groups by color, with the ranks in another order.
void expect_splits_of_host(const BothMemories& both);

}  // namespace terrace
