#include "tests/gpu/nccl_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/engine/compute_backend.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/device_memory_conformance.h"
#include "tests/gpu/rank_processes.h"
#include "tests/gpu/take_stream.h"

// Tests of one of several ranks of NCCL. They exist in processes that gpu_ranks_test.cc starts, one
// for each rank; all processes run all tests.
namespace terrace {
namespace {

class NcclRunner final : public RankRunner {
 public:
  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    CommunicatorOptions own = options;
    own.timeout = std::min(own.timeout, test::kRankOptions.timeout);
    test::NcclWorld world(own);
    body(world.ranks());
    test::meet_ranks();
  }
  void meet() override { test::meet_ranks(); }
};

std::vector<CommunicatorFactory> own_factory() {
  std::vector<CommunicatorFactory> factories;
  for (const int ranks : test::ranks_of_own_job()) {
    factories.push_back({std::to_string(ranks), ranks, [](int) -> std::unique_ptr<RankRunner> {
                           return std::make_unique<NcclRunner>();
                         }});
  }
  return factories;
}

// The suite has instances only in the processes of a job.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformanceTest);
INSTANTIATE_TEST_SUITE_P(Job, CommunicatorConformanceTest, testing::ValuesIn(own_factory()),
                         [](const auto& factory) { return factory.param.name; });

class NcclRank : public testing::TestWithParam<int> {
 protected:
  // No rank leaves while others need it.
  void TearDown() override { test::meet_ranks(); }
};

// Runs `expect` with communicators made as a training makes them.
void expect_on_gpus(const std::function<void(const BothMemories&)>& expect) {
  test::NcclWorld world;
  const auto backend = make_cuda_backend(test::own_gpu());
  const auto devices = backend->exchange()->make_communicator(world.ranks(), test::kRankOptions);
  const auto device = make_cuda_device({.ordinal = test::own_gpu(), .capacity_bytes = 64 * kMiB});
  expect({world.ranks(), *devices, *device});
}

TEST_P(NcclRank, SumsAsTheHostDoes) { expect_on_gpus(expect_sums_of_host); }
TEST_P(NcclRank, MovesWhatTheHostMoves) { expect_on_gpus(expect_moves_of_host); }
TEST_P(NcclRank, SplitsAsTheHostDoes) { expect_on_gpus(expect_splits_of_host); }

constexpr CommunicatorOptions kShort = {.timeout = std::chrono::seconds(15)};

// Links of a ring, which every rank destroys beginning with its own: when NCCL ends a link, it
// waits until the other rank ends it too. If the ranks waited in a circle, that would take the
// whole timeout.
TEST_P(NcclRank, LeavesItsCommunicatorsInAnyOrder) {
  std::chrono::steady_clock::time_point begin;
  {
    test::NcclWorld world(kShort);
    const auto backend = make_cuda_backend(test::own_gpu());
    const auto devices = backend->exchange()->make_communicator(world.ranks(), kShort);
    const auto device = make_cuda_device({.ordinal = test::own_gpu(), .capacity_bytes = kMiB});
    const auto stream = device->create_stream("links");
    test::TakeStream take;
    stream->run(take);
    std::vector<std::unique_ptr<Communicator>> links;
    const int own = devices->rank();
    for (int first = 0; first < devices->size(); ++first) {
      const bool is_end = own == first || own == (first + 1) % devices->size();
      links.push_back(devices->split(is_end ? 0 : 1, own, "link " + std::to_string(first)));
      links.back()->all_reduce({}, ReduceOp::kSum, take.native);
    }
    stream->synchronize();
    std::ranges::rotate(links, links.begin() + own);
    test::meet_ranks();
    begin = std::chrono::steady_clock::now();
    for (auto& link : links) link = nullptr;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kShort.timeout);
}

// Makes collective calls until one of this rank's fails, and returns the error.
std::string end_of_calls(Communicator& ranks) {
  std::vector<float> data(96);
  try {
    for (;;) ranks.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
  } catch (const CommError& error) {
    return error.what();
  }
}

TEST_P(NcclRank, NoticesThatARankDoesNotCome) {
  test::NcclWorld world(kShort);
  const bool comes = world.ranks().rank() + 1 < GetParam();
  if (comes) {
    EXPECT_THAT(end_of_calls(world.ranks()), testing::HasSubstr("all_reduce (sum) of 96 fp32"));
  }
  test::meet_ranks();
  // NCCL's ranks of a host leave a communicator together, or abort it.
  if (!comes) world.ranks().abort("the others have given up");
}

TEST_P(NcclRank, NoticesThatARankHasAborted) {
  test::NcclWorld world(kShort);
  const bool is_last = world.ranks().rank() + 1 == GetParam();
  if (is_last) world.ranks().abort("the disk is full");
  const std::string error = end_of_calls(world.ranks());
  EXPECT_NE(error, "");
  if (is_last) {
    EXPECT_THAT(error, testing::HasSubstr("the disk is full"));
  }
  test::meet_ranks();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclRank);
INSTANTIATE_TEST_SUITE_P(Job, NcclRank, testing::ValuesIn(test::ranks_of_own_job()),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace terrace
