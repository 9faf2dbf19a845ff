#include "memory/host/host_energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

// A folder with the files that the kernel shows for zones of power.
class HostEnergyTest : public testing::Test {
 protected:
  void set(const std::string& zone, std::uint64_t energy_uj) const {
    directory_.write(zone + "/energy_uj", std::to_string(energy_uj) + "\n");
  }
  void add(const std::string& zone, const std::string& name, std::uint64_t energy_uj,
           std::uint64_t range_uj = 262143328850) const {
    directory_.write(zone + "/name", name + "\n");
    directory_.write(zone + "/max_energy_range_uj", std::to_string(range_uj) + "\n");
    set(zone, energy_uj);
  }

  const TemporaryDirectory directory_;
};

TEST_F(HostEnergyTest, AddsPackagesAndTheirMemoryUp) {
  std::filesystem::create_directories(directory_.path("intel-rapl"));
  add("intel-rapl:0", "package-0", 5'000'000);
  add("intel-rapl:0:0", "core", 1'000'000);
  add("intel-rapl:0:1", "dram", 2'000'000);
  add("intel-rapl:1", "package-1", 7'000'000);
  add("intel-rapl:1:0", "uncore", 1'000'000);
  add("intel-rapl:2", "psys", 9'000'000);
  add("intel-rapl-mmio:0", "package-0", 5'000'000);
  HostEnergy energy(directory_.path());
  EXPECT_EQ(energy.lack(), "");
  EXPECT_THAT(energy.zones(), ElementsAre("package-0", "dram of package-0", "package-1"));
  EXPECT_EQ(energy.take_joules(0), std::nullopt) << "the beginning";
  set("intel-rapl:0", 25'000'000);
  set("intel-rapl:0:0", 11'000'000);
  set("intel-rapl:0:1", 2'500'000);
  set("intel-rapl:1", 8'000'000);
  set("intel-rapl:2", 99'000'000);
  set("intel-rapl-mmio:0", 25'000'000);
  const std::optional<double> taken = energy.take_joules(kSecond);
  ASSERT_TRUE(taken.has_value());
  EXPECT_NEAR(*taken, 20 + 0.5 + 1, 1e-9);
  EXPECT_EQ(energy.take_joules(2 * kSecond), 0.0) << "no counter has moved";
}

TEST_F(HostEnergyTest, CountsOverTheEndOfACounter) {
  add("intel-rapl:0", "package-0", 65'532'000'000, 65'532'610'987);
  HostEnergy energy(directory_.path());
  energy.take_joules(0);
  set("intel-rapl:0", 1'000'000);
  const std::optional<double> taken = energy.take_joules(kSecond);
  ASSERT_TRUE(taken.has_value());
  EXPECT_NEAR(*taken, 0.610987 + 1, 1e-6);
}

TEST_F(HostEnergyTest, SaysNothingWhereACounterMayHaveWrappedTwice) {
  add("intel-rapl:0", "package-0", 1'000'000, 65'532'610'987);
  HostEnergy energy(directory_.path());
  energy.take_joules(0);
  set("intel-rapl:0", 2'000'000);
  EXPECT_NE(energy.take_joules(60 * kSecond), std::nullopt);
  set("intel-rapl:0", 3'000'000);
  EXPECT_EQ(energy.take_joules(130 * kSecond), std::nullopt) << "66 s at 1 kW";
  set("intel-rapl:0", 5'000'000);
  const std::optional<double> taken = energy.take_joules(131 * kSecond);
  ASSERT_TRUE(taken.has_value()) << "goes on from there";
  EXPECT_NEAR(*taken, 2, 1e-9);
}

TEST_F(HostEnergyTest, ACounterThatGoesBackWithoutARangeSaysNothing) {
  add("intel-rapl:0", "package-0", 9'000'000, 0);
  std::filesystem::remove(directory_.path("intel-rapl:0/max_energy_range_uj"));
  HostEnergy energy(directory_.path());
  energy.take_joules(0);
  set("intel-rapl:0", 1'000'000);
  EXPECT_EQ(energy.take_joules(kSecond), std::nullopt);
}

TEST_F(HostEnergyTest, ACounterThatCannotBeReadForAWhileSaysNothing) {
  add("intel-rapl:0", "package-0", 1'000'000);
  HostEnergy energy(directory_.path());
  energy.take_joules(0);
  directory_.write("intel-rapl:0/energy_uj", "");
  EXPECT_EQ(energy.take_joules(kSecond), std::nullopt);
  set("intel-rapl:0", 3'000'000);
  EXPECT_EQ(energy.take_joules(2 * kSecond), std::nullopt) << "the last reading is missing";
  set("intel-rapl:0", 4'000'000);
  const std::optional<double> taken = energy.take_joules(3 * kSecond);
  ASSERT_TRUE(taken.has_value());
  EXPECT_NEAR(*taken, 1, 1e-9);
}

TEST_F(HostEnergyTest, SaysWhatIsMissing) {
  const HostEnergy absent(directory_.path("powercap"));
  EXPECT_THAT(absent.lack(), HasSubstr("no " + directory_.path("powercap") +
                                       "; load the kernel "
                                       "module"));
  HostEnergy empty(directory_.path());
  EXPECT_THAT(empty.lack(), HasSubstr("has no counter of a processor package"));
  EXPECT_EQ(empty.take_joules(0), std::nullopt);
  EXPECT_EQ(empty.take_joules(kSecond), std::nullopt);
}

// The sum without one of the counters would look like a smaller machine.
TEST_F(HostEnergyTest, MeasuresNothingWithoutOneOfTheCounters) {
  add("intel-rapl:0", "package-0", 1'000'000);
  add("intel-rapl:1", "package-1", 1'000'000);
  std::filesystem::remove(directory_.path("intel-rapl:1/energy_uj"));
  HostEnergy energy(directory_.path());
  EXPECT_THAT(energy.lack(), HasSubstr("intel-rapl:1/energy_uj: No such file"));
  EXPECT_TRUE(energy.zones().empty());
  EXPECT_EQ(energy.take_joules(0), std::nullopt);
  EXPECT_EQ(energy.take_joules(kSecond), std::nullopt);
}

TEST_F(HostEnergyTest, ReadsTheFilesThatWereThere) {
  add("intel-rapl:0", "package-0", 1'000'000);
  HostEnergy energy(directory_.path());
  energy.take_joules(0);
  std::filesystem::remove_all(directory_.path("intel-rapl:0"));
  EXPECT_EQ(energy.take_joules(kSecond), 0.0) << "they are kept open";
}

}  // namespace
}  // namespace terrace
