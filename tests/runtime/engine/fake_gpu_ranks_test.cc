#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "tests/runtime/engine/device_ranks_fixture.h"
#include "tests/runtime/engine/fake_gpu.h"
#include "tests/runtime/engine/fake_gpu_communicator.h"

// Ranks with a GPU each, as far as that can be tested without one. Collectives over device memory
// are queued on streams, and collectives over host memory are not. The bits are those that the same
// mesh has on the CPU device.
namespace terrace {
namespace {

using test::FakeGpuBackend;
using test::FakeGpuOptions;

class FakeGpuRanks : public testing::TestWithParam<RankMesh> {};

// Runs ranks of every kind in every tier, for the sanitizers. fake_gpu_ranks_bits_test.cc has each
// mesh.
void expect_bits_in_every_tier(const RankMesh& mesh, std::string_view family) {
  const FakeGpuBackend backend;
  const TemporaryDirectory drive;
  ModelRuntimeOptions plain = cpu_options(family);
  plain.gradient_type = DType::kBF16;
  plain.optimizer.max_grad_norm = 0;
  const RankedRun expected = train_mesh(plain, mesh);
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    const Tier optimizer = tier == Tier::kDevice ? Tier::kHost : tier;
    ModelRuntimeOptions options = gpu_options(plain, backend, tier, optimizer);
    options.nvme.directories = {{drive.path(), std::nullopt}};
    options.placement.streamed_updates = 0.5;
    SCOPED_TRACE(name_of(tier));
    expect_equal_runs(train_mesh(options, mesh), expected);
  }
}

TEST(FakeGpuRankTiers, OfDataAndTensorRanksHaveTheBitsOfTheCpuDevice) {
  expect_bits_in_every_tier({"", {.data = 2, .tensor = 2}, 3}, "llama");
}

TEST(FakeGpuRankTiers, OfDataRanksAndStagesHaveTheBitsOfTheCpuDevice) {
  expect_bits_in_every_tier({"", {.data = 2, .pipeline = 2}, 1}, "gpt2");
}

TEST(FakeGpuRankTiers, OfIslandsHaveTheBitsOfTheCpuDevice) {
  for (const ZeroPartition partition : {ZeroPartition::kHpz, ZeroPartition::kHsdp}) {
    expect_bits_in_every_tier({"", {.data = 4, .islands = 2}, 3, partition}, "llama");
  }
}

// Returns the error that each rank ended with, or "" for a rank that came to its end.
std::vector<std::string> errors_of(const RankMesh& mesh, const std::vector<FakeGpuOptions>& gpus,
                                   std::chrono::seconds timeout) {
  auto worlds = make_thread_communicators(mesh.shape.ranks(), "world", {.timeout = timeout});
  std::vector<std::string> errors(worlds.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      const FakeGpuBackend backend(gpus.at(r));
      ModelRuntimeOptions options =
          gpu_options(cpu_options("llama"), backend, Tier::kDevice, Tier::kHost);
      options.zero_stage = mesh.stage;
      options.zero_partition = mesh.partition;
      try {
        as_rank(*worlds[r], options, mesh.shape,
                [](const ModelRuntimeOptions& own) { train_tiny(own, 2); });
        worlds[r]->all_reduce(view(std::span<float>()), ReduceOp::kSum, {});  // all have ended well
      } catch (const std::exception& error) {
        errors[r] = error.what();
        worlds[r]->abort(error.what());
      }
    });
  }
  threads.clear();
  return errors;
}

// A timeout for runs in which no rank waits in vain: on no machine is a rank that late.
constexpr std::chrono::seconds kNeverReached(100);

std::vector<FakeGpuOptions> healthy(const RankMesh& mesh) {
  return std::vector<FakeGpuOptions>(static_cast<std::size_t>(mesh.shape.ranks()));
}

// Expects the last rank to name the call that failed, and every other rank to name that call or say
// that a rank has left.
void expect_named(const std::vector<std::string>& errors) {
  EXPECT_NE(errors.back().find("failed, as planted"), std::string::npos) << errors.back();
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.find("failed, as planted") != error.npos || error.find("left") != error.npos)
        << error;
  }
}

// Wherever a collective fails on a stream, every rank ends with that error, and not with one about
// the invalid data that the failed collective left.
TEST_P(FakeGpuRanks, AFailedCollectiveEndsEveryRank) {
  int failures = 0;
  for (int failing = 1;; failing += 1 + failing / 2) {
    std::vector<FakeGpuOptions> gpus = healthy(GetParam());
    gpus.back().failing_collective = failing;
    const std::vector<std::string> errors = errors_of(GetParam(), gpus, kNeverReached);
    if (errors.back().empty()) {
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      break;
    }
    ++failures;
    expect_named(errors);
  }
  EXPECT_GT(failures, 3);
}

// The other ranks wait on streams for a rank that is gone.
TEST_P(FakeGpuRanks, AFailedGpuEndsEveryRank) {
  for (const int failing : {40, 200, 400}) {
    std::vector<FakeGpuOptions> gpus = healthy(GetParam());
    gpus.front().failing_call = failing;
    const std::vector<std::string> errors = errors_of(GetParam(), gpus, std::chrono::seconds(3));
    EXPECT_NE(errors.front(), "") << failing;
    for (const std::string& error : errors) EXPECT_NE(error, "") << failing;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, FakeGpuRanks, testing::ValuesIn(kRankMeshes),
                         [](const auto& mesh) { return std::string(mesh.param.name); });

// Returns the kinds of calls that engines make on communicators of device memory until they have
// trained `steps` steps.
std::set<std::string> kinds_of_calls(const RankMesh& mesh, const ModelRuntimeOptions& plain,
                                     std::int64_t steps) {
  test::KindsOfCalls kinds;
  const FakeGpuBackend backend({.kinds_of_calls = &kinds});
  ModelRuntimeOptions options = gpu_options(plain, backend, Tier::kDevice, Tier::kDevice);
  options.zero_stage = mesh.stage;
  options.zero_partition = mesh.partition;
  auto worlds = make_thread_communicators(mesh.shape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (const auto& world : worlds) {
    threads.emplace_back([&, world = world.get()] {
      as_rank(*world, options, mesh.shape, [&](const ModelRuntimeOptions& own) {
        const TierPlan plan = plan_model(own);
        SilentLog log;
        ModelRuntime engine(own, plan, log);
        engine.fill_state(RandomState(1234));
        TrainedRun run;
        if (steps > 0) train_steps(engine, own, 1, steps, run);
        if (steps > 0) engine.evaluate(batch_of_step(own, 1));
        world->all_reduce(view(std::span<float>()), ReduceOp::kSum, {});  // no rank has left
      });
    });
  }
  threads.clear();
  return kinds.all();
}

// Ranks that NCCL still has to connect in the middle of a step may wait for each other.
TEST_P(FakeGpuRanks, MakeNoCallOfANewKindInAStep) {
  for (const DType gradients : {DType::kF32, DType::kBF16}) {
    ModelRuntimeOptions plain = cpu_options("llama");
    plain.gradient_type = gradients;
    const std::set<std::string> before = kinds_of_calls(GetParam(), plain, 0);
    EXPECT_FALSE(before.empty());
    for (const std::string& kind : kinds_of_calls(GetParam(), plain, 2)) {
      EXPECT_TRUE(before.contains(kind)) << kind;
    }
  }
}

// A ring of stages is connected pair by pair, in rounds.
TEST(FakeGpuStages, OfAnyNumberAreConnectedBeforeTheFirstStep) {
  ModelRuntimeOptions plain = cpu_options("llama");
  plain.model = with_shape(tiny_model("llama", true, false), {.layers = 5});
  for (const int stages : {3, 4, 5}) {
    const RankMesh mesh = {"", {.data = 2, .pipeline = stages}, 1};
    const std::set<std::string> before = kinds_of_calls(mesh, plain, 0);
    EXPECT_FALSE(before.empty());
    for (const std::string& kind : kinds_of_calls(mesh, plain, 1)) {
      EXPECT_TRUE(before.contains(kind)) << stages << " stages: " << kind;
    }
  }
}

int device_calls(const Program& program, Part part) {
  int calls = 0;
  for (const Op& op : program.ops) {
    if (!is_between_ranks(op.lane) || !op.parts.contains(part)) continue;
    const Access& access = op.reads.empty() ? op.writes.front() : op.reads.front();
    if (program.buffers.at(access.buffer).tier == Tier::kDevice) ++calls;
  }
  return calls;
}

// No call follows the drain's last one, so no later call would notice that it failed.
TEST(FakeGpuDrain, IsNotDoneWhereItsLastCallHasFailed) {
  const FakeGpuBackend backend;
  const RankMesh mesh = {"", {.data = 2}, 1};
  ModelRuntimeOptions options =
      gpu_options(cpu_options("llama"), backend, Tier::kDevice, Tier::kHost);
  options.ranks.shape = mesh.shape;
  options.zero_stage = mesh.stage;
  const TierPlan plan = plan_model(options);
  int calls = 3;  // the calls that connect the ranks
  for (const Part part : {Part::kPrologue, Part::kBody, Part::kDrain}) {
    calls += device_calls(plan.training.program, part);
  }
  ASSERT_GT(device_calls(plan.training.program, Part::kDrain), 0);
  std::vector<FakeGpuOptions> gpus = healthy(mesh);
  gpus.back().failing_collective = calls;
  expect_named(errors_of(mesh, gpus, kNeverReached));
  gpus.back().failing_collective = calls + 1;
  for (const std::string& error : errors_of(mesh, gpus, kNeverReached)) EXPECT_EQ(error, "");
}

// The embedding may be at home in different tiers at the two ends.
TEST(FakeGpuStages, TellUpdatesOfATiedEmbeddingInHostMemory) {
  const FakeGpuBackend backend;
  int messages = 0;
  for (const Tier optimizer : {Tier::kDevice, Tier::kHost}) {
    for (const int stage : {0, 1}) {
      ModelRuntimeOptions options =
          gpu_options(cpu_options("gpt2"), backend, Tier::kDevice, optimizer);
      options.ranks.shape.pipeline = 2;
      options.ranks.position.pipeline = stage;
      const TierPlan plan = plan_model(options);
      const Program& program = plan.training.program;
      for (const Op& op : program.ops) {
        if (op.message != Message::kUpdated) continue;
        const Access& access = stage == 0 ? op.reads.front() : op.writes.front();
        EXPECT_EQ(program.buffers.at(access.buffer).tier, Tier::kHost);
        ++messages;
      }
    }
  }
  EXPECT_GE(messages, 4);
}

}  // namespace
}  // namespace terrace
