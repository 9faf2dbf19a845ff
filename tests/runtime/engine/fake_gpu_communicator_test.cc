#include "tests/runtime/engine/fake_gpu_communicator.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "parallel/thread_communicator.h"
#include "tests/conformance/device_memory_conformance.h"
#include "tests/runtime/engine/fake_gpu.h"

// Communicators of device memory as trainings use them. Sums that the devices' own communicators
// cannot add are made of other calls of theirs.
namespace terrace {
namespace {

class FakeGpuCommunicator : public testing::TestWithParam<int> {
 protected:
  static void run(const std::function<void(const BothMemories&)>& body) {
    auto worlds = make_thread_communicators(GetParam(), "world");
    std::vector<std::jthread> ranks;
    for (auto& own : worlds) {
      ranks.emplace_back([&body, host = std::move(own)] {
        const test::FakeGpuBackend backend;
        const std::unique_ptr<Device> gpu = test::make_fake_gpu(64 * kMiB);
        const auto devices = backend.exchange()->make_communicator(*host, {});
        body({*host, *devices, *gpu});
      });
    }
  }
};

TEST_P(FakeGpuCommunicator, SumsAsTheHostDoes) { run(expect_sums_of_host); }
TEST_P(FakeGpuCommunicator, MovesWhatTheHostMoves) { run(expect_moves_of_host); }
TEST_P(FakeGpuCommunicator, SplitsAsTheHostDoes) { run(expect_splits_of_host); }

INSTANTIATE_TEST_SUITE_P(Ranks, FakeGpuCommunicator, testing::Values(1, 2, 3, 4),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace terrace
