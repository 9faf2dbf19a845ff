#include "memory/host/process_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace terrace {

std::size_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    std::size_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace terrace
