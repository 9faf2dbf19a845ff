#pragma once

#include <cstdint>
#include <string_view>

// Copies between page-locked host memory and a device's, as a benchmark wants them.
namespace terrace {

enum class CopyWays : std::uint8_t {
  kUpload,    // all bytes of the host to the device
  kDownload,  // and back
  kBoth,      // the lower half up and the upper half down, at the same time
  kLocal,     // within the device, from its lower half to its upper half
};

// Seconds from where all copies started to the end of those of a way; 0 of ways that did not run.
struct CopySeconds {
  double upload = 0, download = 0, local = 0;
};

// Memory on both sides of one size, and one way of copying between them. One thread at a time.
class CopyLoad {
 public:
  virtual ~CopyLoad() = default;
  virtual std::string_view name() const = 0;  // for people
  // Copies once and waits for it; the time is by the device's clock. Throws DeviceError.
  virtual CopySeconds run(CopyWays ways) = 0;
};

}  // namespace terrace
