#include "runtime/machine/power_cap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/machine/rank_profile.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

Machine machine_of(double watts) {
  Machine machine;
  machine.name = "node";
  machine.devices = 2;
  machine.at(MachineFigure::kBf16FlopsPerS) = Figure{1e15, {}, {}};
  machine.at(MachineFigure::kUploadBytesPerS) = Figure{5e10, {}, {}};
  machine.at(MachineFigure::kNodeWatts) = Figure{watts, {}, {}};
  return machine;
}

TEST(PowerCap, ProductsGoWithTheCubeRootOfThePower) {
  const Machine machine = machine_of(1000);
  const PowerCap cap = power_cap_on(machine, 729);
  EXPECT_NEAR(cap.clock_share, 0.9, 1e-12);
  const Machine capped = under_power_cap(machine, cap);
  RankSetting setting;
  setting.ranks_on_node = 2;
  EXPECT_NEAR(rank_profile(capped, setting).flops_per_s,
              0.9 * rank_profile(machine, setting).flops_per_s, 1);
  EXPECT_EQ(peak_flops_per_s(capped, setting), 1e15) << "utilisation counts from the peak";
  EXPECT_EQ(rank_profile(capped, setting).upload_bytes_per_s,
            rank_profile(machine, setting).upload_bytes_per_s);
  EXPECT_EQ(capped.value(MachineFigure::kNodeWatts), 729);
  EXPECT_THAT(describe_power_cap(cap), HasSubstr("729 W of the 1000 W"));
  EXPECT_THAT(describe_power_cap(cap), HasSubstr("0.9 of their rate, if power goes with the cube"));
}

TEST(PowerCap, KeepsTheShareOfAProfile) {
  Machine machine = machine_of(1000);
  machine.at(MachineFigure::kProductShare) = Figure{0.5, {}, {}};
  const Machine capped = under_power_cap(machine, power_cap_on(machine, 512));
  EXPECT_NEAR(capped.value(MachineFigure::kProductShare), 0.4, 1e-12);
}

TEST(PowerCap, AboveTheFullPowerChangesNothing) {
  const Machine machine = machine_of(1000);
  const PowerCap cap = power_cap_on(machine, 2000);
  EXPECT_EQ(cap.clock_share, 1);
  EXPECT_EQ(under_power_cap(machine, cap).value(MachineFigure::kNodeWatts), 1000);
  EXPECT_THAT(describe_power_cap(cap), HasSubstr("power cap: none"));
}

TEST(PowerCap, RefusesWhatNothingPredicts) {
  TERRACE_EXPECT_THROW_WITH(power_cap_on(machine_of(1000), 499), ConfigError,
                            "--power-cap 499: a node of node takes 1000 W at full load");
  Machine unknown = machine_of(1000);
  unknown.at(MachineFigure::kNodeWatts).reset();
  TERRACE_EXPECT_THROW_WITH(power_cap_on(unknown, 900), ConfigError,
                            "node_watts of the machine node is not known");
}

}  // namespace
}  // namespace terrace
