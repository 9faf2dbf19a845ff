#include "tests/conformance/device_conformance.h"

#include <gtest/gtest.h>

#include "memory/cpu/cpu_device.h"

namespace terrace {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformanceTest,
                         testing::Values(DeviceFactory{"cpu", &make_cpu_device, 0}),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace terrace
