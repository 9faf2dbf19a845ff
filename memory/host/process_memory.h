#pragma once

#include <cstddef>

namespace terrace {

// Returns the largest number of bytes that this process has had resident at once (VmHWM of
// /proc/self/status), or 0 where the system does not say. Any thread.
std::size_t peak_resident_bytes();

}  // namespace terrace
