#pragma once

#include <cstddef>
#include <memory>

#include "memory/device.h"

namespace terrace {

// Makes a device of host memory: an arena of its own of at most `capacity_bytes`, capped like a
// GPU's, and one worker thread per stream. It outlives the memory it gave out.
std::unique_ptr<Device> make_cpu_device(std::size_t capacity_bytes);

}  // namespace terrace
