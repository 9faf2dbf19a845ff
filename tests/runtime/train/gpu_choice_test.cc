#include "runtime/train/gpu_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/model/model_presets.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

constexpr DeviceChoice kCpu = {DeviceKind::kCpu, {}};
constexpr DeviceChoice kAuto = {DeviceKind::kAuto, {}};
constexpr DeviceChoice kCuda = {DeviceKind::kCuda, {}};
constexpr DeviceChoice kCuda1 = {DeviceKind::kCuda, 1};
constexpr RanksOnHost kAlone = {1, 0};

TEST(GpuChoice, TheCpuIsNoGpu) {
  EXPECT_FALSE(choose_gpu(kCpu, kAlone, 1).has_value());
  EXPECT_FALSE(choose_gpu(kAuto, {2, 1}, 2).has_value());
  EXPECT_EQ(make_backend(std::nullopt), nullptr);
}

TEST(GpuChoice, AutoTakesAGpuThatCanBeUsedForOneRank) {
  const auto yes = [] { return true; };
  const auto no = [] { return false; };
  EXPECT_TRUE(takes_gpus(kAuto, 1, yes));
  EXPECT_FALSE(takes_gpus(kAuto, 1, no));
  EXPECT_TRUE(takes_gpus(kCuda1, 1, no)) << "CUDA says what is wrong with it";
  // GPUs are not examined if the answer does not depend on them.
  const auto looked = []() -> bool { throw DeviceError("looked at a GPU", ""); };
  EXPECT_FALSE(takes_gpus(kAuto, 2, looked));
  EXPECT_FALSE(takes_gpus(kCpu, 1, looked));
  EXPECT_TRUE(takes_gpus(kCuda, 2, looked));
}

TEST(GpuChoice, ARankHasTheGpuWithItsNumberOnTheHost) {
  EXPECT_EQ(gpu_ordinal(kCuda, kAlone, 8), 0);
  EXPECT_EQ(gpu_ordinal(kCuda, {8, 7}, 8), 7);
  EXPECT_EQ(gpu_ordinal(kCuda1, kAlone, 2), 1);
  // These choices are accepted here, because CUDA itself reports what is wrong with them.
  EXPECT_EQ(gpu_ordinal(kCuda1, kAlone, 1), 1);
  EXPECT_EQ(gpu_ordinal(kCuda, {2, 1}, 0), 1);
}

TEST(GpuChoice, RanksDoNotShareAGpu) {
  try {
    gpu_ordinal(kCuda, {4, 2}, 2);
    FAIL() << "a GPU that is not there";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("GPU 2 for rank 2 of the 4"), std::string::npos)
        << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
  try {
    gpu_ordinal(kCuda1, {2, 0}, 2);
    FAIL() << "both ranks on GPU 1";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:1"), std::string::npos) << error.what();
  }
}

TEST(GpuChoice, CudaAndNcclArePreparedForRanksAsTheUserWants) {
  for (const char* name : {"CUDA_MODULE_LOADING", "NCCL_PROTO"}) ::unsetenv(name);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 1);
  ::setenv("NCCL_ALGO", "NVLS", 1);
  prepare_for_ranks(kCpu);
  EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr);
  EXPECT_EQ(std::getenv("NCCL_PROTO"), nullptr);
  prepare_for_ranks(kCuda);
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(std::getenv("NCCL_PROTO"), "Simple");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "NVLS");
  for (const char* name :
       {"CUDA_MODULE_LOADING", "NCCL_PROTO", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_ALGO"}) {
    ::unsetenv(name);
  }
}

TEST(GpuChoice, WithoutAGpuAutoIsTheCpuAndCudaSaysWhatIsMissing) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "not run: there is a GPU";
  EXPECT_FALSE(choose_gpu(kAuto, kAlone, 1).has_value());
  EXPECT_FALSE(first_gpu_is_usable());
  EXPECT_EQ(why_gpus_are_idle(kAuto, 1), "");
  try {
    choose_gpu(kCuda, kAlone, 1);
    FAIL() << "found a GPU";
  } catch (const EnvironmentError& error) {
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST(GpuChoice, TheHostArenaIsNearTheGpuWhereItFits) {
  const GpuChoice gpu = {.ordinal = 0, .capacity_bytes = kGiB, .numa_node = 1};
  Topology topology;
  topology.numa_nodes = {{.os_index = 0, .memory_bytes = 64 * kGiB, .cpus = {}},
                         {.os_index = 1, .memory_bytes = 10 * kGiB, .cpus = {}}};
  const std::vector<int> of_threads = {0, 1};
  EXPECT_EQ(arena_nodes(gpu, topology, 8 * kGiB, of_threads), std::vector<int>{1});
  EXPECT_EQ(arena_nodes(gpu, topology, 10 * kGiB, of_threads), of_threads);
  EXPECT_EQ(arena_nodes(std::nullopt, topology, kGiB, of_threads), of_threads);
  const GpuChoice anywhere = {.ordinal = 0, .capacity_bytes = kGiB, .numa_node = -1};
  EXPECT_EQ(arena_nodes(anywhere, topology, kGiB, of_threads), of_threads);
}

class GpuOptions : public testing::Test {
 protected:
  GpuOptions() {
    machine_.limits = read_host_limits();
    machine_.gpu = GpuChoice{.ordinal = 0, .capacity_bytes = 1024 * kGiB, .numa_node = -1};
    options_.tiers.device = kCuda;
    options_.model.model = "nano";
  }

  ModelRuntimeOptions engine_options() const {
    return engine_options_for(options_, load_model_config("nano"), machine_);
  }
  // As of a rank that is alone on its host.
  void check() const {
    check_budgets(options_.tiers, machine_, budgeted_memory(options_.tiers, machine_));
  }

  MachineShare machine_;
  TrainOptions options_;
};

TEST_F(GpuOptions, ItsMemoryIsATierOfItsOwn) {
  const ModelRuntimeOptions engine = engine_options();
  EXPECT_FALSE(engine.placement.unified);
  EXPECT_EQ(engine.budgets[static_cast<std::size_t>(Tier::kDevice)], 1024 * kGiB);
  // The host arena may use all of the host's memory, no matter how much memory the GPU has.
  machine_.gpu.reset();
  EXPECT_EQ(engine.budgets[static_cast<std::size_t>(Tier::kHost)],
            engine_options().budgets[static_cast<std::size_t>(Tier::kHost)]);
  EXPECT_TRUE(engine_options().placement.unified);
}

TEST_F(GpuOptions, ABudgetIsWithinWhatTheGpuHas) {
  options_.tiers.device_memory = 2 * kGiB;
  EXPECT_EQ(engine_options().budgets[static_cast<std::size_t>(Tier::kDevice)], 2 * kGiB);
  check();
  options_.tiers.device_memory = 1025 * kGiB;
  EXPECT_THROW(check(), OutOfMemory);
}

TEST_F(GpuOptions, AHostBudgetIsWithinWhatTheHostHas) {
  options_.tiers.host_memory = machine_.limits.total_bytes + kGiB;
  try {
    check();
    FAIL() << "took more than there is";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(std::string(error.what()).find("--device-memory"), std::string::npos);
  }
}

}  // namespace
}  // namespace terrace
