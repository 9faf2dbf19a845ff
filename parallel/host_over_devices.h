#pragma once

#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

namespace terrace {

// Makes a communicator of host memory for ranks that can reach each other only through their
// devices, such as torchrun's ranks by NCCL. `devices` is a communicator of the memory of `device`;
// `device` outlives the result and all communicators that are split from it. Data between ranks is
// copied to the device and back, in pieces. Sums are taken on the host, in rank order, so they have
// the same bits as in every communicator of host memory. The ranks compare their calls before they
// carry them out; `devices` reports which ranks are missing. Throws OutOfMemory where the device
// has no room for the pieces, and DeviceError.
std::unique_ptr<Communicator> make_host_communicator(std::unique_ptr<Communicator> devices,
                                                     Device& device);

}  // namespace terrace
