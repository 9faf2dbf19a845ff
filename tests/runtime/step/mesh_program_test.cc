#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "runtime/engine/model_runtime.h"
#include "runtime/step/verify_ranks.h"

// The step programs of large meshes, compiled in this process as every rank would compile them.
namespace terrace {
namespace {

// Returns options for Llama 3.1 70B over 512 ranks: 16 stages of 32 data-parallel ranks each.
ModelRuntimeOptions options_512() {
  ModelRuntimeOptions options;
  options.model = load_model_config("llama-70b");
  options.batch = {1, 4096};
  options.placement.micro_batches = 16;
  options.placement.unified = false;
  options.placement.homes[StateClass::kOptimizer] = Tier::kHost;
  options.placement.recompute = true;
  options.placement.lookahead = 2;
  options.zero_stage = 3;
  options.evaluates = false;
  options.ranks.shape = {.data = 32, .tensor = 1, .pipeline = 16};
  return options;
}

// The ranks of a stage differ only in where their shards lie. The programs of its first and last
// rank must be the same apart from that, and then so are the programs of the ranks between.
// Programs of different stages are checked against each other as a whole, using the first
// data-parallel rank of each stage.
TEST(MeshProgram, Of512RanksIsVerified) {
  ModelRuntimeOptions options = options_512();
  for (const auto& [schedule, pieces] :
       {std::pair{PipelineSchedule::k1F1B, 1}, std::pair{PipelineSchedule::kInterleaved, 2}}) {
    options.pipeline_schedule = schedule;
    options.virtual_stages = pieces;
    options.ranks.position = {};
    const TierPlan own = plan_model(options);
    check_stages(options, own);
    for (const int stage : {0, 1, 15}) {
      std::vector<Program> programs;
      for (const int data_rank : {0, 31}) {
        options.ranks.position = {.data = data_rank, .tensor = 0, .pipeline = stage};
        programs.push_back(plan_model(options).training.program);
      }
      EXPECT_THAT(verify_ranks(programs), testing::IsEmpty());
      EXPECT_EQ(rank_fingerprint(programs.front()), rank_fingerprint(programs.back()));
    }
  }
}

// The same model over as many ranks, with eight tensor-parallel ranks on each host. Ranks that
// share units have exactly the same program. So their collectives are in one order, and one of them
// stands for all when stages are checked against each other.
TEST(MeshProgram, Of512TensorParallelRanksIsVerified) {
  ModelRuntimeOptions options = options_512();
  options.placement.micro_batches = 4;
  options.ranks.shape = {.data = 16, .tensor = 8, .pipeline = 4};
  const TierPlan own = plan_model(options);
  check_stages(options, own);
  for (const int stage : {0, 3}) {
    std::vector<Program> programs;
    for (const auto& [data_rank, tensor_rank] : {std::pair{0, 0}, {0, 7}, {15, 7}}) {
      options.ranks.position = {.data = data_rank, .tensor = tensor_rank, .pipeline = stage};
      programs.push_back(plan_model(options).training.program);
    }
    EXPECT_EQ(programs[0], programs[1]);
    EXPECT_THAT(verify_ranks(programs), testing::IsEmpty());
  }
}

// The programs of a stage are the same apart from the numbers of shards. So the first and the last
// data-parallel rank of each stage stand for all 64, and two tensor-parallel ranks have one
// program.
TEST(MeshProgram, Of64DataParallel2TensorParallel4StagesIsVerified) {
  ModelRuntimeOptions options = options_512();
  options.ranks.shape = {.data = 64, .tensor = 2, .pipeline = 4};
  const auto begin = std::chrono::steady_clock::now();
  const TierPlan own = plan_model(options);
  check_stages(options, own);
  for (std::int32_t stage = 0; stage < 4; ++stage) {
    std::vector<Program> programs;
    for (const auto& [data_rank, tensor_rank] : {std::pair{0, 0}, {0, 1}, {63, 1}}) {
      options.ranks.position = {.data = data_rank, .tensor = tensor_rank, .pipeline = stage};
      programs.push_back(plan_model(options).training.program);
    }
    EXPECT_EQ(programs[0], programs[1]);
    EXPECT_EQ(rank_fingerprint(programs[0]), rank_fingerprint(programs[2]));
    EXPECT_THAT(verify_ranks(programs), testing::IsEmpty());
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::cout << "512 ranks verified in " << taken.count() << " s\n";
}

}  // namespace
}  // namespace terrace
