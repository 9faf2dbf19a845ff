#include "runtime/train/step_energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "parallel/thread_communicator.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::StartsWith;

class StepEnergyTest : public testing::Test {
 protected:
  void set_joules(int joules) const {
    directory_.write("powercap/intel-rapl:0/name", "package-0\n");
    directory_.write("powercap/intel-rapl:0/energy_uj", std::to_string(joules) + "000000\n");
  }
  StepEnergy::Setting setting(bool counts_host = true) const {
    return {.counts_host = counts_host, .powercap = directory_.path("powercap")};
  }
  static RankGroup one_rank() { return {nullptr, MeshShape()}; }

  const TemporaryDirectory directory_;
};

TEST_F(StepEnergyTest, CountsFromItsBeginning) {
  set_joules(10);
  StepEnergy energy(setting());
  set_joules(15);
  energy.begin(0);
  set_joules(22);
  RunTotals totals;
  energy.take(1, totals);
  EXPECT_EQ(totals.host_joules, 7);
  EXPECT_TRUE(std::isnan(totals.device_joules)) << "no GPU computes";
  EXPECT_EQ(measured_joules(totals), 7.0);
  EXPECT_EQ(energy.describe(one_rank()), "energy is measured for the processors (package-0)");
}

TEST_F(StepEnergyTest, AMachineCountsOnce) {
  set_joules(10);
  StepEnergy first(setting());
  StepEnergy second(setting(false));
  first.begin(0);
  second.begin(0);
  set_joules(14);
  std::array<RunTotals, 2> totals;
  first.take(1, totals[0]);
  second.take(1, totals[1]);
  auto worlds = make_thread_communicators(2, "world", {});
  const MeshShape shape = {.data = 2};
  std::array<std::string, 2> said;
  {
    const std::jthread other([&] {
      const RankGroup ranks(worlds[1].get(), shape);
      ranks.combine(totals[1]);
      said[1] = second.describe(ranks);
    });
    const RankGroup ranks(worlds[0].get(), shape);
    ranks.combine(totals[0]);
    said[0] = first.describe(ranks);
  }
  EXPECT_EQ(totals[0].host_joules, 4);
  EXPECT_EQ(totals[1].host_joules, 4);
  EXPECT_TRUE(std::isnan(totals[0].device_joules));
  EXPECT_EQ(said[0], "energy is measured for the processors (package-0)");
}

// A sum without one of the machines would be too small.
TEST_F(StepEnergyTest, OneMachineWithoutCountersLeavesTheRunUnmeasured) {
  set_joules(10);
  StepEnergy first(setting());
  StepEnergy second({.powercap = directory_.path("absent")});
  std::array<RunTotals, 2> totals;
  auto worlds = make_thread_communicators(2, "world", {});
  const MeshShape shape = {.data = 2};
  std::string said;
  {
    const std::jthread other([&] {
      const RankGroup ranks(worlds[1].get(), shape);
      second.begin(0);
      second.take(1, totals[1]);
      ranks.combine(totals[1]);
      second.describe(ranks);
    });
    const RankGroup ranks(worlds[0].get(), shape);
    first.begin(0);
    first.take(1, totals[0]);
    EXPECT_EQ(totals[0].host_joules, 0);
    ranks.combine(totals[0]);
    said = first.describe(ranks);
  }
  EXPECT_EQ(measured_joules(totals[0]), std::nullopt);
  EXPECT_THAT(said, StartsWith("energy is not measured: on the machine of rank 1, no " +
                               directory_.path("absent")));
}

TEST_F(StepEnergyTest, AGpuWithoutCounterLeavesTheProcessors) {
  set_joules(10);
  StepEnergy::Setting with_gpu = setting();
  with_gpu.gpu_address = "0000:ff:00.0";
  EXPECT_THAT(
      StepEnergy(with_gpu).describe(one_rank()),
      StartsWith("energy is measured for the processors (package-0), and not for the GPUs: "));
  with_gpu.powercap = directory_.path("absent");
  EXPECT_THAT(StepEnergy(with_gpu).describe(one_rank()),
              StartsWith("energy is not measured: no " + directory_.path("absent")));
}

TEST(EnergySum, AddsTheStepsThatWereMeasured) {
  EnergySum sum("energy is measured for the processors (package-0)");
  EXPECT_EQ(sum.text(), "");
  RunTotals totals;
  totals.device_joules = std::nan("");
  totals.host_joules = 30;
  sum.add(totals, 0.5, 100);
  sum.add(totals, 0.5, 100);
  EXPECT_EQ(sum.text(), "energy: 60 J, 0.3 J a token, 60 W");
  totals.host_joules = std::nan("");
  sum.add(totals, 7, 100);
  EXPECT_EQ(sum.text(), "energy in 2 of 3 steps: 60 J, 0.3 J a token, 60 W");
  const nlohmann::json json = nlohmann::json::parse(sum.json());
  EXPECT_EQ(json.at("steps"), 2);
  EXPECT_EQ(json.at("joules"), 60);
  EXPECT_EQ(json.at("joules_per_token"), 0.3);
  EXPECT_EQ(json.at("seconds"), 1);
}

TEST(EnergySum, HasUnitsThatSuitIt) {
  EnergySum sum("");
  RunTotals totals;
  totals.host_joules = 51200;
  sum.add(totals, 100, 1000);
  EXPECT_EQ(sum.text(), "energy: 51.2 kJ, 51.2 J a token, 512 W");
  totals.host_joules = 2e6;
  sum.add(totals, 100, 1000);
  EXPECT_THAT(sum.text(), StartsWith("energy: 2.051 MJ, "));
}

TEST(EnergySum, ACounterThatStandsStillIsNoMeasurement) {
  EnergySum sum("energy is measured for the processors (package-0)");
  RunTotals totals;
  totals.host_joules = 0;
  sum.add(totals, 0.5, 100);
  EXPECT_EQ(sum.text(), "");
  EXPECT_FALSE(nlohmann::json::parse(sum.json()).contains("joules"));
}

}  // namespace
}  // namespace terrace
