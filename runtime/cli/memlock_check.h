#pragma once

#include "memory/host/host_limits.h"
#include "offload/uring/uring_probe.h"
#include "runtime/cli/machine_checks.h"

namespace terrace {

// Checks how much of a host arena io_uring can register, judging by how much memory a test ring of
// this process was charged for. Training works even if some or all of it is not registered.
MachineCheck check_memlock(const UringFacts& uring, const HostLimits& limits);

}  // namespace terrace
