#pragma once

#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

namespace terrace {

// A communicator of host memory for ranks that meet through their devices only: those of torchrun,
// by NCCL. `devices` is of the memory of `device`, which outlives it and what is split from it.
// What goes between ranks is copied to the device and from it, in pieces; sums are taken on the
// host, in rank order, so their bits are those of every communicator of host memory. The ranks
// compare their calls before they carry them out; who is missing is what `devices` says. Throws
// OutOfMemory where the device has no room for the pieces, DeviceError.
std::unique_ptr<Communicator> make_host_communicator(std::unique_ptr<Communicator> devices,
                                                     Device& device);

}  // namespace terrace
