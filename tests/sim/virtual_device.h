#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "memory/device.h"
#include "tests/sim/virtual_time.h"

namespace terrace {

// Makes a device whose streams are actors: a command takes about `command_ns`. Nothing blocks: a
// host that would wait for an event for ever gets a Hang.
std::unique_ptr<Device> make_virtual_device(VirtualTime& time, std::int64_t command_ns);

}  // namespace terrace
