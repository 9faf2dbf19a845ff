#pragma once

#include <cstddef>

namespace terrace {

// Returns the peak resident memory of this process so far, in bytes (VmHWM of /proc/self/status),
// or 0 if the system does not report it. Any thread may call it.
std::size_t peak_resident_bytes();
// Returns the memory that is resident now.
std::size_t resident_bytes();

}  // namespace terrace
