#include "memory/cuda/gpu_energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(GpuEnergy, CountsBetweenTwoCalls) {
  GpuEnergy energy("0000:3a:00.0", TERRACE_FAKE_NVML);
  EXPECT_EQ(energy.lack(), "");
  EXPECT_EQ(energy.take_joules(), std::nullopt) << "the beginning";
  EXPECT_EQ(energy.take_joules(), 2.5);
  EXPECT_EQ(energy.take_joules(), 2.5);
}

TEST(GpuEnergy, SaysWhatIsMissing) {
  EXPECT_THAT(GpuEnergy("0000:3a:00.0", "libnvidia-ml-that-is-not-there.so.1").lack(),
              HasSubstr("libnvidia-ml-that-is-not-there.so.1 cannot be used"));
  EXPECT_THAT(GpuEnergy("0000:ff:00.0", TERRACE_FAKE_NVML).lack(),
              HasSubstr("NVML does not find the GPU 0000:ff:00.0"));
  GpuEnergy old("0000:3b:00.0", TERRACE_FAKE_NVML);
  EXPECT_THAT(old.lack(), HasSubstr("no counter of energy"));
  EXPECT_EQ(old.take_joules(), std::nullopt);
}

}  // namespace
}  // namespace terrace
