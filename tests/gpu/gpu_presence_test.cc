#include "tests/gpu/gpu_presence.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/train/gpu_choice.h"

namespace terrace::test {

bool has_cuda_driver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr;  // kept loaded: the CUDA runtime asks for it next
}

namespace {

TEST(GpuPresence, TheSuitesOfThisProgramRun) {
  if (!has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver on this machine";
  EXPECT_GT(cuda_device_count(), 0) << "there is a driver, and no GPU that it lets us use";
}

TEST(GpuPresence, WithoutADriverTheDeviceSaysWhatIsMissing) {
  EXPECT_TRUE(is_cuda_built());
  if (cuda_device_count() > 0) return;
  try {
    make_cuda_device({});
    FAIL() << "made a device without a GPU";
  } catch (const EnvironmentError& error) {
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST(GpuPresence, AGpuThatIsNotThereIsNamed) {
  EXPECT_THROW(make_cuda_device({.ordinal = cuda_device_count()}), EnvironmentError);
  EXPECT_THROW(cuda_capacity_bytes(-1), EnvironmentError);
}

TEST(GpuPresence, ARunOfOneRankTakesTheFirstGpuByItself) {
  if (!has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
  const DeviceChoice by_itself;
  ASSERT_TRUE(cuda_device_computes(0));
  const std::optional<GpuChoice> chosen = choose_gpu(by_itself, RanksOnHost{}, 1);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->ordinal, 0);
  EXPECT_FALSE(choose_gpu(by_itself, {2, 0}, 2).has_value());
  EXPECT_NE(why_gpus_are_idle(by_itself, 2), "");
  EXPECT_EQ(why_gpus_are_idle({DeviceKind::kCpu, {}}, 2), "");
}

}  // namespace
}  // namespace terrace::test
