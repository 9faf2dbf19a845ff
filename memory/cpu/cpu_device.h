#pragma once

#include <cstddef>
#include <memory>

#include "memory/device.h"

namespace terrace {

// A device made of host memory: an arena of its own of at most `capacity_bytes`, capped as a GPU's
// is, and one worker thread per stream. It outlives the memory it gave out.
std::unique_ptr<Device> make_cpu_device(std::size_t capacity_bytes);

}  // namespace terrace
