#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/nccl_rank.h"
#include "tests/gpu/rank_processes.h"
#include "tests/runtime/engine/device_ranks_fixture.h"

// Whole trainings by ranks with NCCL, as this rank sees them. These tests exist in processes that
// gpu_ranks_test.cc starts.
namespace terrace {
namespace {

class NcclRankTraining : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { test::meet_ranks(); }

  Curve train(const ModelRuntimeOptions& options, const RankMesh& mesh) {
    ModelRuntimeOptions of_stage = options;
    of_stage.zero_stage = mesh.stage;
    of_stage.zero_partition = mesh.partition;
    Curve curve;
    const auto train_and_meet = [&](const ModelRuntimeOptions& own) {
      curve = train_tiny(own, kSteps).curve;
      test::meet_ranks();  // no rank leaves while others train
    };
    as_rank(world_.ranks(), of_stage, mesh.shape, train_and_meet, test::kRankOptions);
    return curve;
  }
  Curve train_on_gpus(const ModelRuntimeOptions& plain, const RankMesh& mesh, Tier tier,
                      Tier optimizer) {
    return train(gpu_options(plain, *backend_, tier, optimizer), mesh);
  }

  static std::vector<RankMesh> meshes() {
    std::vector<RankMesh> of_so_many;
    for (const RankMesh& mesh : kRankMeshes) {
      if (mesh.shape.ranks() == GetParam()) of_so_many.push_back(mesh);
    }
    return of_so_many;
  }

  test::NcclWorld world_;
  const std::unique_ptr<ComputeBackend> backend_ = make_cuda_backend(test::own_gpu());
};

TEST_P(NcclRankTraining, PlacementsDoNotChangeBits) {
  for (const RankMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.name);
    const ModelRuntimeOptions plain = cpu_options("llama");
    const Curve expected = train_on_gpus(plain, mesh, Tier::kDevice, Tier::kDevice);
    EXPECT_EQ(train_on_gpus(plain, mesh, Tier::kDevice, Tier::kHost), expected);
    EXPECT_EQ(train_on_gpus(plain, mesh, Tier::kHost, Tier::kHost), expected);
  }
}

TEST_P(NcclRankTraining, PlacementsDoNotChangeBitsOfNarrowGradients) {
  for (const RankMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.name);
    ModelRuntimeOptions plain = cpu_options("gpt2");
    plain.gradient_type = DType::kBF16;
    const Curve expected = train_on_gpus(plain, mesh, Tier::kDevice, Tier::kDevice);
    EXPECT_EQ(train_on_gpus(plain, mesh, Tier::kHost, Tier::kHost), expected);
  }
}

TEST_P(NcclRankTraining, PlacementsDoNotChangeBitsOfCodes) {
  for (const RankMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.name);
    ModelRuntimeOptions plain = cpu_options("llama");
    if (!add_codes(plain, mesh)) continue;
    const Curve expected = train_on_gpus(plain, mesh, Tier::kDevice, Tier::kDevice);
    EXPECT_EQ(train_on_gpus(plain, mesh, Tier::kHost, Tier::kHost), expected);
  }
}

// Two ranks can add in one order only.
TEST_P(NcclRankTraining, StagesOfTwoRanksDoNotChangeBits) {
  if (GetParam() != 2) return;
  const ModelRuntimeOptions plain = cpu_options("llama");
  const auto train_stage = [&](std::int32_t stage) {
    return train_on_gpus(plain, {"", {.data = 2}, stage}, Tier::kDevice, Tier::kDevice);
  };
  const Curve expected = train_stage(0);
  for (const std::int32_t stage : {1, 2, 3}) EXPECT_EQ(train_stage(stage), expected) << stage;
}

// In fp32, with the same kernels on the host, losses and norms of four steps have a relative
// difference of 1e-7; half as many data-parallel ranks change losses by 3e-3 and norms by 0.1.
TEST_P(NcclRankTraining, FollowsTheCpu) {
  constexpr double kNear = 1e-5;
  for (const RankMesh& mesh : meshes()) {
    SCOPED_TRACE(mesh.name);
    const ModelRuntimeOptions plain = cpu_options("llama", DType::kF32);
    const Curve curve = train_on_gpus(plain, mesh, Tier::kDevice, Tier::kHost);
    const RankedRun on_cpu = train_mesh(plain, mesh);
    const Curve& expected = on_cpu.curves.at(static_cast<std::size_t>(test::own_place().rank));
    ASSERT_EQ(curve.losses.size(), expected.losses.size());
    for (std::size_t step = 0; step < curve.losses.size(); ++step) {
      EXPECT_NEAR(curve.losses[step], expected.losses[step], kNear * expected.losses[step]);
      EXPECT_NEAR(curve.norms[step], expected.norms[step], kNear * expected.norms[step]);
    }
  }
}

// The suite has instances only in the processes of a job.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclRankTraining);
INSTANTIATE_TEST_SUITE_P(Job, NcclRankTraining, testing::ValuesIn(test::ranks_of_own_job()),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace terrace
