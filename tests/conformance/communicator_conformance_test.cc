#include "tests/conformance/communicator_conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "parallel/mpi/staged_communicator.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_communicator.h"
#include "tests/conformance/loopback_transport.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

class ThreadRunner final : public RankRunner {
 public:
  using Make = std::function<Communicators(const CommunicatorOptions&)>;
  ThreadRunner(int ranks, Make make) : make_(std::move(make)), meeting_(ranks) {}

  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    Communicators communicators = make_(options);
    std::vector<std::jthread> threads;
    for (auto& communicator : communicators) {
      threads.emplace_back([&body, own = std::move(communicator)] { body(*own); });
    }
  }
  void meet() override { meeting_.arrive_and_wait(); }

 private:
  const Make make_;
  std::barrier<> meeting_;
};

class SelfRunner final : public RankRunner {
 public:
  void run(const CommunicatorOptions& /*options*/,
           const std::function<void(Communicator&)>& body) override {
    const auto communicator = make_self_communicator("world");
    body(*communicator);
  }
  void meet() override {}
};

std::unique_ptr<RankRunner> threads(int ranks) {
  return std::make_unique<ThreadRunner>(ranks, [ranks](const CommunicatorOptions& options) {
    return make_thread_communicators(ranks, "world", options);
  });
}

// Runs between threads the code that processes run.
template <int ranks_per_host, PeerReads reads = PeerReads::kNone>
std::unique_ptr<RankRunner> staged(int ranks) {
  return std::make_unique<ThreadRunner>(ranks, [ranks](const CommunicatorOptions& options) {
    Communicators communicators;
    for (auto& transport : make_loopback_transports(ranks, ranks_per_host, reads)) {
      communicators.push_back(
          std::make_unique<StagedCommunicator>(std::move(transport), "world", options));
    }
    return communicators;
  });
}

std::unique_ptr<RankRunner> self(int /*ranks*/) { return std::make_unique<SelfRunner>(); }

std::vector<CommunicatorFactory> communicators() {
  std::vector<CommunicatorFactory> all = {{"self", 1, self},
                                          {"1_thread", 1, threads},
                                          {"2_threads", 2, threads},
                                          {"3_threads", 3, threads},
                                          {"1_staged", 1, staged<1>},
                                          {"3_on_one_host", 3, staged<3>},
                                          {"2_that_read", 2, staged<2, PeerReads::kWork>},
                                          {"3_that_read", 3, staged<3, PeerReads::kWork>},
                                          {"3_on_two_hosts", 3, staged<2>},
                                          {"3_on_three_hosts", 3, staged<1>}};
  // The more ranks wait for each other on few processors, the longer everything takes.
  if (!kSanitized) {
    all.push_back({"4_threads", 4, threads});
    all.push_back({"many_threads", kManyRanks, threads});
    all.push_back({"4_on_two_hosts", 4, staged<2>});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Communicator, CommunicatorConformanceTest,
                         testing::ValuesIn(communicators()),
                         [](const auto& info) { return info.param.name; });

// The test stands for a process that may not be read any more, or that has ended in the middle of a
// call.
TEST(StagedCommunicator, ReadsThatFailEndAllRanks) {
  constexpr std::size_t kElements = kMiB;
  const auto runner = staged<2, PeerReads::kFail>(2);
  runner->run({}, [](Communicator& communicator) {
    std::vector<float> data(kElements);
    try {
      communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
      ADD_FAILURE() << "no CommError on rank " << communicator.rank();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(),
                  testing::ContainsRegex("rank [01] cannot read the memory of rank [01]"));
    }
  });
}

// A rank that fails may give its buffers back while other ranks read them.
TEST(StagedCommunicator, WhatIsReadFromARankThatHasFailedIsNotTaken) {
  const auto runner = staged<2, PeerReads::kAfterFailure>(2);
  std::array<std::vector<float>, 2> buffers = {std::vector<float>(kMiB), std::vector<float>(kMiB)};
  runner->run({}, [&buffers](Communicator& communicator) {
    const std::span<float> data = buffers.at(static_cast<std::size_t>(communicator.rank()));
    try {
      communicator.broadcast(view(data), 0, {});
      ADD_FAILURE() << "no CommError on rank " << communicator.rank();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("in the middle of a read"));
    }
  });
}

}  // namespace
}  // namespace terrace
