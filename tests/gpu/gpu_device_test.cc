#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "memory/cuda/cuda_device.h"
#include "memory/cuda/host_registration.h"
#include "memory/host/host_memory.h"
#include "tests/conformance/device_conformance.h"
#include "tests/gpu/gpu_presence.h"

namespace terrace {
namespace {

constexpr std::int64_t kClockSlackNs = 1'000'000;

std::unique_ptr<Device> make_first_gpu(std::size_t capacity_bytes) {
  return make_cuda_device({.ordinal = 0, .capacity_bytes = capacity_bytes});
}

std::vector<DeviceFactory> devices() {
  if (!test::has_cuda_driver()) return {};
  return {{"cuda", &make_first_gpu, kClockSlackNs}};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformanceTest);
INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformanceTest, testing::ValuesIn(devices()),
                         [](const auto& device) { return device.param.name; });

class GpuMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
  }
};

TEST_F(GpuMemory, RegisteredMemoryIsCopiedBothWays) {
  constexpr std::size_t kSize = 8 * kMiB;
  const auto device = make_first_gpu(kSize);
  const HostMemory source(kSize, HostMemoryOptions{});
  const HostMemory target(kSize, HostMemoryOptions{});
  const HostRegistration source_locked(source.bytes());
  const HostRegistration target_locked(target.bytes());
  for (std::size_t i = 0; i < kSize; ++i) source.bytes()[i] = static_cast<std::byte>(i * 7 + i / 9);
  const auto memory = device->allocate(kSize);
  const auto stream = device->create_stream("both ways");
  stream->copy(memory->bytes(), source.bytes());
  stream->copy(target.bytes(), memory->bytes());
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
}

}  // namespace
}  // namespace terrace
