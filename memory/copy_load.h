#pragma once

#include <cstdint>
#include <string_view>

// Copies between page-locked host memory and a device's memory, for benchmarks.
namespace terrace {

enum class CopyWays : std::uint8_t {
  kUpload,    // all bytes of the host to the device
  kDownload,  // and back to the host
  kBoth,      // the lower half up and the upper half down, at the same time
  kLocal,     // within the device, from its lower half to its upper half
};

// Seconds from the common start of all copies to the end of the copies in one way; 0 for ways that
// did not run.
struct CopySeconds {
  double upload = 0, download = 0, local = 0;
};

// Memory of one size on both sides, and one method of copying between them. One thread at a time.
class CopyLoad {
 public:
  virtual ~CopyLoad() = default;
  virtual std::string_view name() const = 0;  // for people
  // Copies once and waits for it. The time is measured by the device's clock. Throws DeviceError.
  virtual CopySeconds run(CopyWays ways) = 0;
};

}  // namespace terrace
