#include "runtime/machine/rank_profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/machine/op_estimates.h"
#include "runtime/step/simulate.h"
#include "tests/runtime/step/simulate_fixture.h"
#include "tests/runtime/temporary_directory.h"

// The rates of one rank: its part of a node, and of the links that its groups use.
namespace terrace {
namespace {

constexpr double kLinkShare = 0.85;

Machine two_devices() {
  return parse_machine(
      "schema = \"terrace.machine/1\"\nname = \"m\"\ndevices = 4\n"
      "bf16_flops_per_s = 1e12\nproduct_share = 0.5\nnode_link_bytes_per_s = 100e9\n"
      "node_link_latency_s = 1e-6\nnetwork_bytes_per_s = 40e9\nnetwork_latency_s = 5e-6\n"
      "host_memory_bytes_per_s = 80e9\ndrive_read_bytes_per_s = 8e9\n"
      "device_memory_bytes_per_s = 1e12\n",
      "m");
}

MachineProfile profile_of(const MeshShape& mesh) {
  return rank_profile(two_devices(), {DType::kBF16, mesh, 4});
}

LinkRate link_on(const MeshShape& mesh, MeshAxis axis) {
  const MachineProfile profile = profile_of(mesh);
  return link_of(profile, axis);
}

TEST(RankProfiles, GiveARankItsPartOfTheNode) {
  const MachineProfile profile = profile_of({.data = 4});
  EXPECT_DOUBLE_EQ(profile.flops_per_s, 0.5e12);
  EXPECT_DOUBLE_EQ(profile.memory_bytes_per_s, 20e9);
  EXPECT_DOUBLE_EQ(profile.drive.read_bytes_per_s, 2e9);
  EXPECT_EQ(profile.compute_cores, 0);
  EXPECT_DOUBLE_EQ(profile.compute_bytes_per_s, kLinkShare * 1e12);
}

// Eight ranks along the data axis pass the network once for the four that share a node. With two
// tensor-parallel ranks, two groups of two share it.
TEST(RankProfiles, ShareTheNetworkAmongTheGroupsOfANode) {
  const auto rate = [](const MeshShape& mesh, MeshAxis axis) {
    return link_on(mesh, axis).bytes_per_s / kLinkShare;
  };
  EXPECT_DOUBLE_EQ(rate({.data = 4}, MeshAxis::kData), 100e9);
  EXPECT_DOUBLE_EQ(rate({.data = 8}, MeshAxis::kData), 40e9);
  EXPECT_DOUBLE_EQ(rate({.data = 8, .tensor = 2}, MeshAxis::kTensor), 100e9);
  EXPECT_DOUBLE_EQ(rate({.data = 8, .tensor = 2}, MeshAxis::kData), 20e9);
  EXPECT_DOUBLE_EQ(rate({.data = 2, .tensor = 8}, MeshAxis::kTensor), 40e9);
  EXPECT_DOUBLE_EQ(rate({.data = 2, .tensor = 4}, MeshAxis::kData), 10e9);
  EXPECT_DOUBLE_EQ(rate({.data = 1, .tensor = 2, .pipeline = 2}, MeshAxis::kPipeline), 100e9);
  EXPECT_DOUBLE_EQ(rate({.data = 2, .tensor = 2, .pipeline = 2}, MeshAxis::kPipeline), 10e9);
}

TEST(RankProfiles, TakeMeasuredLinksAsTheyAre) {
  Machine machine = two_devices();
  machine.at(MachineFigure::kLinkShare).emplace().value = 1;
  const MachineProfile profile = rank_profile(machine, {DType::kBF16, {.data = 4}, 4});
  EXPECT_DOUBLE_EQ(profile.compute_bytes_per_s, 1e12);
  EXPECT_DOUBLE_EQ(link_of(profile, MeshAxis::kData).bytes_per_s, 100e9);
}

// Products of 1e6 FLOPs run at a quarter of the rate of those of 1e8, and those in between lie on a
// line over the logarithm.
TEST(RankProfiles, SlowDownSmallProductsByTheCurve) {
  Machine machine = two_devices();
  machine.product_curve = {{1e6, 0.25}, {1e8, 1}};
  const KernelRates rates = kernel_rates(machine, profile_of({}), DType::kBF16);
  const auto product_s = [&](const KernelCost& kernel) {
    MachineProfile profile;
    estimate_ops({{OpClass{}, {{kernel}, 1}}}, rates, profile);
    return profile.seconds_per_work.at(OpClass{}) - rates.launch_s;
  };
  for (const auto& [flops, share] :
       {std::pair(1e5, 0.25), {1e6, 0.25}, {1e7, 0.625}, {1e8, 1.0}, {1e9, 1.0}}) {
    const double expected_s = flops / (rates.flops_per_s * share);
    EXPECT_NEAR(product_s({.flops = flops}), expected_s, 1e-9 * expected_s) << flops;
  }
}

// Pairs of ranks on nodes of three: the second pair has one rank on each of two nodes.
TEST(RankProfiles, TakeTheNetworkForGroupsThatStraddleNodes) {
  const RankSetting setting = {
      .compute_type = DType::kBF16, .mesh = {.data = 2, .pipeline = 3}, .ranks_on_node = 3};
  const MachineProfile profile = rank_profile(two_devices(), setting);
  EXPECT_DOUBLE_EQ(link_of(profile, MeshAxis::kData).bytes_per_s, kLinkShare * 40e9 / 3);
}

TEST(RankProfiles, AddALatencyForEachHopOfARing) {
  EXPECT_DOUBLE_EQ(link_on({.data = 4}, MeshAxis::kData).latency_s, 3e-6);
  EXPECT_DOUBLE_EQ(link_on({.data = 8}, MeshAxis::kData).latency_s, 11e-6);
  EXPECT_DOUBLE_EQ(link_on({.data = 2, .tensor = 2, .pipeline = 2}, MeshAxis::kPipeline).latency_s,
                   5e-6);
}

// A collective takes its latency and then the time of its bytes.
TEST(RankProfiles, SimulatedCollectivesHaveALatency) {
  MachineProfile profile = unit_profile();
  link_of(profile, MeshAxis::kTensor) = {.bytes_per_s = 8, .latency_s = 2};
  HandMadeProgram made;
  made.op(Lane::kTensor, 40, {}, {made.own_buffer()});
  EXPECT_DOUBLE_EQ(simulate(made.finish(), profile, 1).makespan_s, 7);
}

// Devices exchange their own memory, so a slow host does not slow them. Ranks without devices meet
// in the host's memory.
TEST(RankProfiles, ExchangesOfDevicesPassTheHostBy) {
  Machine machine = two_devices();
  machine.at(MachineFigure::kHostMemoryBytesPerS)->value = 8;
  HandMadeProgram made;
  made.op(Lane::kTensor, kLinkShare * 100e9, {}, {made.own_buffer()});
  const Program program = made.finish();
  const RankSetting setting = {DType::kBF16, {.data = 2, .tensor = 2}, 4};
  const MachineProfile of_devices = rank_profile(machine, setting);
  EXPECT_NEAR(simulate(program, of_devices, 1).makespan_s, 1, 1e-3);
  EXPECT_FALSE(of_devices.ranks_meet_in_host_memory);
  machine.devices = 0;
  EXPECT_TRUE(rank_profile(machine, setting).ranks_meet_in_host_memory);
}

TEST(RankProfiles, OfProcessorsShareTheNodesProducts) {
  Machine machine = two_devices();
  machine.devices = 0;
  const MachineProfile profile = rank_profile(machine, {DType::kBF16, {.data = 2}, 2});
  EXPECT_DOUBLE_EQ(profile.flops_per_s, 0.25e12);
  EXPECT_DOUBLE_EQ(profile.memory_bytes_per_s, 40e9);
  EXPECT_DOUBLE_EQ(link_of(profile, MeshAxis::kData).bytes_per_s, 20e9);
}

TEST(RankProfiles, RefuseAFigureThatAProgramNeedsAndNobodyKnows) {
  const RankSetting setting = {DType::kBF16, {.data = 4}, 4};
  HandMadeProgram writing;
  writing.op(Lane::kWrite, 40, {writing.own_buffer()}, {});
  TERRACE_EXPECT_THROW_WITH(check_known(two_devices(), setting, writing.finish()), ConfigError,
                            "drive_write_bytes_per_s of the machine m is not known");
  HandMadeProgram reading;
  reading.op(Lane::kRead, 40, {}, {reading.own_buffer()});
  check_known(two_devices(), setting, reading.finish());
  Machine old = two_devices();  // a device without bf16
  old.at(MachineFigure::kFp32FlopsPerS) = old.at(MachineFigure::kBf16FlopsPerS);
  old.at(MachineFigure::kBf16FlopsPerS).reset();
  TERRACE_EXPECT_THROW_WITH(rank_profile(old, {DType::kBF16, {}, 1}), ConfigError,
                            "bf16_flops_per_s of the machine m is not known");
  old.devices = 0;
  EXPECT_DOUBLE_EQ(rank_profile(old, {DType::kBF16, {}, 1}).flops_per_s, 0.5e12);
  TERRACE_EXPECT_THROW_WITH(rank_profile(two_devices(), {DType::kF16, {}, 1}), ConfigError,
                            "fp16_flops_per_s of the machine m is not known");
}

}  // namespace
}  // namespace terrace
