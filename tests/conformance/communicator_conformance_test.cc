#include "tests/conformance/communicator_conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/half.h"
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
Communicators staged_communicators(std::vector<std::unique_ptr<Transport>> transports,
                                   const CommunicatorOptions& options) {
  Communicators communicators;
  for (auto& transport : transports) {
    communicators.push_back(
        std::make_unique<StagedCommunicator>(std::move(transport), "world", options));
  }
  return communicators;
}

template <int ranks_per_host, PeerReads reads = PeerReads::kNone,
          HierarchicalUse hierarchical = HierarchicalUse::kAuto>
std::unique_ptr<RankRunner> staged(int ranks) {
  return std::make_unique<ThreadRunner>(ranks, [ranks](CommunicatorOptions options) {
    options.hierarchical = hierarchical;
    return staged_communicators(make_loopback_transports(ranks, ranks_per_host, reads), options);
  });
}

template <int ranks_per_host>
std::unique_ptr<RankRunner> in_chains(int ranks) {
  return staged<ranks_per_host, PeerReads::kNone, HierarchicalUse::kOn>(ranks);
}

// Neighbours in rank order are on different hosts.
std::unique_ptr<RankRunner> on_hosts_in_turn(int ranks) {
  return std::make_unique<ThreadRunner>(ranks, [ranks](const CommunicatorOptions& options) {
    std::vector<int> hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank % 2);
    return staged_communicators(make_loopback_transports(hosts), options);
  });
}

template <int ranks_per_host>
std::unique_ptr<RankRunner> flat(int ranks) {
  return staged<ranks_per_host, PeerReads::kNone, HierarchicalUse::kOff>(ranks);
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
                                          {"3_on_three_hosts", 3, staged<1>},
                                          {"4_in_chains_over_two_hosts", 4, in_chains<2>}};
  // The more ranks wait for each other on few processors, the longer everything takes.
  if (!kSanitized) {
    all.push_back({"4_threads", 4, threads});
    all.push_back({"many_threads", kManyRanks, threads});
    all.push_back({"3_flat_on_two_hosts", 3, flat<2>});
    all.push_back({"4_on_two_hosts", 4, staged<2>});
    all.push_back({"4_flat_on_two_hosts", 4, flat<2>});
    all.push_back({"5_on_two_hosts", 5, staged<3>});
    all.push_back({"5_on_two_hosts_in_turn", 5, on_hosts_in_turn});
    all.push_back({"6_in_chains_over_two_hosts", 6, in_chains<3>});
    all.push_back({"6_in_chains_over_three_hosts", 6, in_chains<2>});
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

// Runs `body` on ranks of two hosts, half of them on each; returns the bytes that each host has
// sent to the other.
std::array<std::uint64_t, 2> sent_between_two_hosts(
    int ranks, HierarchicalUse hierarchical, const std::function<void(Communicator&)>& body) {
  LoopbackTraffic traffic;
  ThreadRunner runner(ranks, [&](const CommunicatorOptions& options) {
    return staged_communicators(
        make_loopback_transports(ranks, ranks / 2, PeerReads::kNone, &traffic), options);
  });
  runner.run({.hierarchical = hierarchical}, body);
  return {traffic.sent_by[0].load(), traffic.sent_by[1].load()};
}

TEST(StagedCommunicator, GatheredDataCrossesOnceForEachHost) {
  for (const int ranks : {4, 8}) {
    constexpr std::size_t kPart = 3 * kMiB / sizeof(float) + 16;
    const auto gather = [](Communicator& communicator) {
      std::vector<float> own(kPart);
      std::vector<float> all(kPart * static_cast<std::size_t>(communicator.size()));
      communicator.all_gather(view(std::span(all)), view(std::span(own)), {});
      communicator.broadcast(view(std::span(own)), 1, {});
    };
    const auto per_host = static_cast<std::uint64_t>(ranks / 2);
    const std::uint64_t part = kPart * sizeof(float);
    EXPECT_THAT(sent_between_two_hosts(ranks, HierarchicalUse::kAuto, gather),
                testing::ElementsAre((per_host + 1) * part, per_host * part));
    EXPECT_THAT(
        sent_between_two_hosts(ranks, HierarchicalUse::kOff, gather),
        testing::ElementsAre((per_host * per_host + per_host) * part, per_host * per_host * part));
  }
}

TEST(StagedCommunicator, SumsCrossOnceAndTheirResultsOnceMore) {
  for (const int ranks : {4, 8}) {
    constexpr std::size_t kPart = 3 * kMiB / sizeof(float) + 16;
    const auto reduce = [](Communicator& communicator) {
      std::vector<float> all(kPart * static_cast<std::size_t>(communicator.size()), 1.0F);
      std::vector<float> own(kPart);
      communicator.reduce_scatter(view(std::span(own)), view(std::span(all)), ReduceOp::kSum, {});
    };
    const auto per_host = static_cast<std::uint64_t>(ranks / 2);
    const std::uint64_t part = kPart * sizeof(float);
    EXPECT_THAT(sent_between_two_hosts(ranks, HierarchicalUse::kAuto, reduce),
                testing::ElementsAre(2 * per_host * part, per_host * part));
    EXPECT_THAT(sent_between_two_hosts(ranks, HierarchicalUse::kOff, reduce),
                testing::Each(per_host * per_host * part));
  }
}

// bf16 crosses as fp32 in a chain, which is more bytes with two ranks on a host, and fewer with
// four.
TEST(StagedCommunicator, NarrowSumsTakeTheChainWhereItCarriesFewerBytes) {
  constexpr std::size_t kPart = 2 * kMiB;
  const auto reduce = [](Communicator& communicator) {
    std::vector<Bf16> all(kPart * static_cast<std::size_t>(communicator.size()));
    std::vector<Bf16> own(kPart);
    communicator.reduce_scatter(view(std::span(own)), view(std::span(all)), ReduceOp::kSum, {});
  };
  constexpr std::uint64_t kBytes = kPart * sizeof(Bf16);
  EXPECT_THAT(sent_between_two_hosts(4, HierarchicalUse::kAuto, reduce),
              testing::ElementsAre(4 * kBytes, 4 * kBytes));
  EXPECT_THAT(sent_between_two_hosts(4, HierarchicalUse::kOn, reduce),
              testing::ElementsAre(8 * kBytes, 2 * kBytes));
  EXPECT_THAT(sent_between_two_hosts(8, HierarchicalUse::kAuto, reduce),
              testing::ElementsAre(16 * kBytes, 4 * kBytes));
}

// The last rank begins late, until each other rank has waited for it. A rank that the system holds
// up meanwhile is late itself, so one call need not be enough.
TEST(Communicator, CountsWaitsForTheRankThatBeginsLast) {
  for (const auto& runner : {threads(3), staged<3>(3), staged<2>(3)}) {
    runner->run({}, [](Communicator& communicator) {
      const int last = communicator.size() - 1;
      const bool is_last = communicator.rank() == last;
      for (int call = 0; call < 100; ++call) {
        if (is_last) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const double waited = communicator.waited_for_s().at(static_cast<std::size_t>(last));
        std::int32_t has_not_waited = !is_last && waited < 0.004 ? 1 : 0;
        communicator.all_reduce(view(std::span(&has_not_waited, 1)), ReduceOp::kMax, {});
        if (has_not_waited == 0) return;
      }
      ADD_FAILURE() << "rank " << communicator.rank() << " has not waited for the last rank";
    });
  }
}

TEST(StagedCommunicator, OtherChoicesOfHierarchyAreAnError) {
  Communicators communicators;
  for (auto& transport : make_loopback_transports(2, 1)) {
    const bool is_first = communicators.empty();
    communicators.push_back(std::make_unique<StagedCommunicator>(
        std::move(transport), "world",
        CommunicatorOptions{.hierarchical =
                                is_first ? HierarchicalUse::kOn : HierarchicalUse::kOff}));
  }
  std::vector<std::jthread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&communicator] {
      std::vector<float> data(1);
      try {
        communicator->all_reduce(view(std::span(data)), ReduceOp::kSum, {});
        ADD_FAILURE() << "no CommError on rank " << communicator->rank();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("different --hierarchical-collectives"));
      }
    });
  }
}

}  // namespace
}  // namespace terrace
