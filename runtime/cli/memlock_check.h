#pragma once

#include "memory/host/host_limits.h"
#include "offload/uring/uring_probe.h"
#include "runtime/cli/machine_checks.h"

namespace terrace {

// How much of a host arena io_uring registers, by what a ring of this process was seen to count.
// That some or all is not registered stops nothing.
MachineCheck check_memlock(const UringFacts& uring, const HostLimits& limits);

}  // namespace terrace
