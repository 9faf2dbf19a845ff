#include "runtime/machine/device_speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/machine/machine_toml.h"

// Pipeline stages on nodes whose devices are not equally fast.
namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Machine four_devices(const std::string& speeds) {
  return parse_machine("schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 4\n" + speeds +
                           "bf16_flops_per_s = 1e12\ndevice_memory_bytes_per_s = 1e11\n"
                           "upload_bytes_per_s = 1e10\n",
                       "m");
}

const Machine kHalves = four_devices("device_speeds = [1, 1, 0.5, 0.25]\n");

TEST(DeviceSpeeds, AStageIsAsFastAsItsSlowestRank) {
  const auto speeds = [](const MeshShape& mesh, std::int32_t ranks_on_node = 4) {
    return stage_speeds(kHalves, {DType::kBF16, mesh, ranks_on_node});
  };
  EXPECT_THAT(speeds({.pipeline = 4}), ElementsAre(1, 1, 0.5, 0.25));
  EXPECT_THAT(speeds({.data = 2, .pipeline = 2}), ElementsAre(1, 0.25));
  EXPECT_THAT(speeds({.tensor = 2, .pipeline = 2}), ElementsAre(1, 0.25));
  EXPECT_THAT(speeds({.data = 4}), ElementsAre(0.25));
  // Two nodes repeat the list; ranks have the first devices of each.
  EXPECT_THAT(speeds({.pipeline = 8}), ElementsAre(1, 1, 0.5, 0.25, 1, 1, 0.5, 0.25));
  EXPECT_THAT(speeds({.data = 4, .pipeline = 2}), ElementsAre(0.25, 0.25));
  EXPECT_THAT(speeds({.pipeline = 6}, 3), ElementsAre(1, 1, 0.5, 1, 1, 0.5));
}

TEST(DeviceSpeeds, StagesOfEqualSpeedAreNotListed) {
  const auto unequal = [](const Machine& machine, const MeshShape& mesh) {
    return unequal_stage_speeds(machine, {DType::kBF16, mesh, 4});
  };
  EXPECT_THAT(unequal(kHalves, {.data = 4, .pipeline = 2}), IsEmpty());
  EXPECT_THAT(unequal(four_devices(""), {.pipeline = 4}), IsEmpty());
  EXPECT_THAT(unequal(kHalves, {.data = 2, .pipeline = 2}), ElementsAre(1, 0.25));
}

TEST(DeviceSpeeds, SlowProductsAndDeviceMemory) {
  const RankSetting setting{DType::kBF16, {.pipeline = 4}, 4};
  const MachineProfile full = rank_profile(kHalves, setting);
  const MachineProfile half = rank_profile(at_speed(kHalves, 0.5), setting);
  EXPECT_DOUBLE_EQ(half.flops_per_s, full.flops_per_s / 2);
  EXPECT_DOUBLE_EQ(half.compute_bytes_per_s, full.compute_bytes_per_s / 2);
  EXPECT_EQ(half.upload_bytes_per_s, full.upload_bytes_per_s);
}

TEST(DeviceSpeeds, ThePeakCountsEachDeviceAtItsOwnSpeed) {
  const auto peak = [](const Machine& machine, const MeshShape& mesh) {
    return peak_of_all_ranks(machine, {DType::kBF16, mesh, 4});
  };
  EXPECT_DOUBLE_EQ(peak(kHalves, {.data = 4}), 2.75e12);
  EXPECT_DOUBLE_EQ(peak(kHalves, {.data = 2, .pipeline = 4}), 5.5e12);
  EXPECT_DOUBLE_EQ(peak(four_devices(""), {.data = 8}), 8e12);
}

}  // namespace
}  // namespace terrace
