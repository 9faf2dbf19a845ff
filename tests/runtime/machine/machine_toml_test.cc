#include "runtime/machine/machine_toml.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/machine/shipped_machines.h"
#include "tests/runtime/temporary_directory.h"

// Profiles of machines: what their files may say, and the ones that are shipped.
namespace terrace {
namespace {

constexpr const char* kSmallest = "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 2\n";

Machine parsed(const std::string& more) { return parse_machine(kSmallest + more, "m.toml"); }

TEST(MachineFiles, MayGiveAFigureInThreeWays) {
  const Machine machine = parsed(
      "bf16_flops_per_s = 3e12\ncores = 8\nhost_memory_bytes = \"not known\"\n"
      "node_watts = { value = 500, source = \"a sheet\", date = \"2024-01\" }\n");
  EXPECT_EQ(machine.name, "m");
  EXPECT_EQ(machine.devices, 2);
  EXPECT_EQ(machine.value(MachineFigure::kBf16FlopsPerS), 3e12);
  EXPECT_EQ(machine.value(MachineFigure::kCores), 8);
  EXPECT_FALSE(machine.knows(MachineFigure::kHostMemoryBytes));
  EXPECT_FALSE(machine.knows(MachineFigure::kFp32FlopsPerS));
  EXPECT_EQ(machine.at(MachineFigure::kNodeWatts)->source, "a sheet");
  EXPECT_EQ(parse_machine(to_toml(machine), "again"), machine);
  TERRACE_EXPECT_THROW_WITH(machine.value(MachineFigure::kFp32FlopsPerS), ConfigError,
                            "fp32_flops_per_s of the machine m is not known");
}

TEST(MachineFiles, MayGiveTheSpeedOfProductsBySize) {
  const Machine machine = parsed("product_curve = [[1000, 0.25], [2e6, 1]]\n");
  const std::vector<ProductSpeed> curve = {{1000, 0.25}, {2e6, 1}};
  EXPECT_EQ(machine.product_curve, curve);
  EXPECT_EQ(parse_machine(to_toml(machine), "again"), machine);
  EXPECT_TRUE(parsed("product_curve = \"not known\"\n").product_curve.empty());
}

TEST(MachineFiles, AreRefusedByTheKeyThatIsWrong) {
  for (const auto& [text, why] :
       {std::pair{"coress = 8\n", "coress is not a key"},
        {"cores = 0\n", "cores is not a possible figure"},
        {"cores = -1\n", "cores is not a possible figure"},
        {"cores = \"8\"\n", "cores is not a possible figure"},
        {"cores = nan\n", "cores is not a possible figure"},
        {"cores = { source = \"x\" }\n", "cores is not a possible figure"},
        {"cores = { value = 8, page = 3 }\n", "cores has page"},
        {"product_share = 1.5\n", "product_share is not a possible figure"},
        {"product_curve = 3\n", "product_curve is not a list of points"},
        {"product_curve = []\n", "product_curve is not a list of points"},
        {"product_curve = [[1e3, 0.5], [1e3, 1]]\n", "product_curve has a point 2 that cannot be"},
        {"product_curve = [[1e3, 1.5]]\n", "product_curve has a point 1 that cannot be"},
        {"product_curve = [[1e3, 0]]\n", "product_curve has a point 1 that cannot be"},
        {"product_curve = [[1e3]]\n", "product_curve has a point 1 that cannot be"},
        {"cores = \n", "m.toml, line 4"}}) {
    TERRACE_EXPECT_THROW_WITH(parsed(text), ConfigError, why);
  }
  TERRACE_EXPECT_THROW_WITH(parse_machine("name = \"m\"\n", "x"), ConfigError, "schema is missing");
  TERRACE_EXPECT_THROW_WITH(
      parse_machine("schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = -1\n", "x"),
      ConfigError, "devices is not");
}

TEST(MachineFiles, MayGiveTheSpeedOfEachDevice) {
  const Machine machine = parsed("device_speeds = [1, 0.5]\ncores = 8\n");
  EXPECT_EQ(machine.device_speeds, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(parse_machine(to_toml(machine), "again"), machine);
  const Machine equal = parsed("cores = 8\n");
  EXPECT_TRUE(equal.device_speeds.empty());
  EXPECT_EQ(to_toml(equal).find("device_speeds"), std::string::npos);
  for (const char* wrong : {"[1]", "[1, 1, 1]", "[1, 0]", "[1, -0.5]", "[1, 1.5]", "[1, nan]",
                            "[1, \"half\"]", "0.5", "\"not known\""}) {
    TERRACE_EXPECT_THROW_WITH(parsed(std::string("device_speeds = ") + wrong + "\n"), ConfigError,
                              "device_speeds is not a list of 2 numbers from 0.001 to 1");
  }
  TERRACE_EXPECT_THROW_WITH(
      parse_machine("schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 0\n"
                    "device_speeds = []\n",
                    "x"),
      ConfigError, "device_speeds is given, but devices is 0; take it out");
}

// Each shipped figure says which document states it.
TEST(ShippedMachines, NameTheSourceOfEveryFigure) {
  const std::vector<std::string> names = shipped_machine_names();
  EXPECT_GE(names.size(), 8U);
  for (const std::string& name : names) {
    const Machine machine = shipped_machine(name);
    EXPECT_FALSE(machine.about.empty()) << name;
    int known = 0;
    for (std::size_t i = 0; i < kMachineFigures; ++i) {
      const std::optional<Figure>& figure = machine.figures.at(i);
      if (!figure) continue;
      ++known;
      EXPECT_FALSE(figure->source.empty()) << name << " " << kMachineFigureTraits.at(i).key;
      EXPECT_GE(figure->date, "20") << name << " " << kMachineFigureTraits.at(i).key;
    }
    EXPECT_GE(known, 6) << name;
  }
  TERRACE_EXPECT_THROW_WITH(shipped_machine("dgx-h10"), ConfigError, "no machine is called");
  TERRACE_EXPECT_THROW_WITH(find_machine("no/such.toml"), ConfigError, "cannot be read");
}

}  // namespace
}  // namespace terrace
