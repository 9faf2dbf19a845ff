#include "memory/device_capacity.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {

void DeviceCapacity::take(std::size_t size_bytes) {
  std::size_t used = used_bytes_.load();
  do {
    const std::size_t left = capacity_bytes_ - used;
    if (size_bytes > left) {
      throw OutOfMemory(
          fmt::format("device memory: {} requested, {} free of {}", format_size(size_bytes),
                      format_size(left), format_size(capacity_bytes_)),
          "raise the device memory budget, or move more state to the host");
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + size_bytes));
}

}  // namespace terrace
