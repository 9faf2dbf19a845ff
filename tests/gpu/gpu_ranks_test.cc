#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/gpu/gpu_presence.h"
#include "tests/gpu/rank_processes.h"

// Several ranks with NCCL, on as many GPUs as there are. These tests start processes that run the
// tests of nccl_rank_test.cc and nccl_rank_training_test.cc.
namespace terrace {
namespace {

class GpuRanks : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
  }
};

TEST_P(GpuRanks, ConformOverHostMemory) {
  // NCCL cannot name a missing rank, and an abort concerns one rank only: the others do not hear
  // its reason.
  test::expect_ranks_pass(GetParam(),
                          "Job/CommunicatorConformanceTest.*"
                          "-*.TimeoutNamesTheCallAndWhoDidNotArrive/*"
                          ":*.RecvTimesOutWhenNobodySends/*"
                          ":*.AbortEndsEveryCallOfEveryRank/*"
                          ":*.ACallThatReturnsIsWhole/*"
                          ":*.AnAbortIsKnownWithoutACall/*"
                          ":*.DifferentSizesOfAPairAreNamed/*");
}

TEST_P(GpuRanks, ConformOverDeviceMemory) { test::expect_ranks_pass(GetParam(), "Job/NcclRank.*"); }

// Each training is a test by itself, because ranks that share a GPU make hundreds of communicators
// for them.
class GpuRanksTrain : public GpuRanks {
 protected:
  static void expect_trainings_pass(const std::string& name) {
    test::expect_ranks_pass(GetParam(), "Job/NcclRankTraining." + name + "/*");
  }
};

TEST_P(GpuRanksTrain, OnEveryPlacement) { expect_trainings_pass("PlacementsDoNotChangeBits"); }
TEST_P(GpuRanksTrain, WithNarrowGradients) {
  expect_trainings_pass("PlacementsDoNotChangeBitsOfNarrowGradients");
}
TEST_P(GpuRanksTrain, WithCodes) { expect_trainings_pass("PlacementsDoNotChangeBitsOfCodes"); }
TEST_P(GpuRanksTrain, WithEveryStage) { expect_trainings_pass("StagesOfTwoRanksDoNotChangeBits"); }
TEST_P(GpuRanksTrain, AsTheCpu) { expect_trainings_pass("FollowsTheCpu"); }

std::string name_of_ranks(const testing::TestParamInfo<int>& ranks) {
  return std::to_string(ranks.param);
}
INSTANTIATE_TEST_SUITE_P(OfAJob, GpuRanks, testing::Values(2, 3, 4), name_of_ranks);
INSTANTIATE_TEST_SUITE_P(OfAJob, GpuRanksTrain, testing::Values(2, 3, 4), name_of_ranks);

// Tests the meeting of ranks on which the tests above depend; it needs no GPU.
TEST(RankProcesses, MeetWhenAllHaveCome) { test::expect_ranks_pass(3, "Job/ProcessOfARank.*"); }

class ProcessOfARank : public testing::TestWithParam<int> {};

TEST_P(ProcessOfARank, MeetsTheOthers) {
  const LaunchEnvironment& place = test::own_place();
  EXPECT_EQ(place.source, LaunchSource::kTorchrun);
  EXPECT_EQ(place.size, GetParam());
  for (int round = 0; round < 4; ++round) {
    const auto file_of = [round](int rank) {
      return std::filesystem::path(test::directory_of_job()) /
             (std::to_string(round) + " " + std::to_string(rank));
    };
    // Another rank is last in every round.
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20 * ((place.rank + round) % place.size)));
    std::ofstream(file_of(place.rank)) << "has come";
    test::meet_ranks();
    for (int rank = 0; rank < place.size; ++rank) {
      EXPECT_TRUE(std::filesystem::exists(file_of(rank))) << rank << " in round " << round;
    }
  }
}

// The suite has instances only in the processes of a job.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProcessOfARank);
INSTANTIATE_TEST_SUITE_P(Job, ProcessOfARank, testing::ValuesIn(test::ranks_of_own_job()),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace terrace
