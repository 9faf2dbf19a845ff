#include "memory/host/process_memory.h"

#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace terrace {

namespace {

// Returns a number of KiB that the kernel keeps of this process, in bytes.
std::size_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    std::size_t kib = 0;
    if (key == name && status >> kib) return kib * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

std::size_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

std::size_t resident_bytes() { return status_bytes("VmRSS:"); }

}  // namespace terrace
