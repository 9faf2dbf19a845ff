#pragma once

#include <cstddef>

namespace terrace {

// Returns the most bytes that this process has had resident at once (VmHWM of /proc/self/status),
// 0 where the system does not say. Any thread.
std::size_t peak_resident_bytes();

}  // namespace terrace
