#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

#include "base/bytes.h"
#include "memory/device.h"

// The behaviour required of every Device. The tests are in device_conformance.cc; each
// implementation registers itself with INSTANTIATE_TEST_SUITE_P(..., DeviceConformanceTest, ...).
namespace terrace {

struct DeviceFactory {
  std::string name;
  std::unique_ptr<Device> (*make)(std::size_t capacity_bytes);
  std::int64_t clock_slack_ns;  // how far the device's clock may differ from the host's
};

// GoogleTest looks for this name. NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }

inline constexpr std::size_t kDeviceConformanceCapacity = 16 * kMiB;

class DeviceConformanceTest : public testing::TestWithParam<DeviceFactory> {
 protected:
  std::unique_ptr<Device> device_ = GetParam().make(kDeviceConformanceCapacity);
};

}  // namespace terrace
