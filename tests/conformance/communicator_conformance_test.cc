#include "tests/conformance/communicator_conformance.h"

#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "parallel/self_communicator.h"
#include "parallel/thread_communicator.h"

namespace terrace {
namespace {

class ThreadRunner final : public RankRunner {
 public:
  explicit ThreadRunner(int ranks) : ranks_(ranks), meeting_(ranks) {}

  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    auto communicators = make_thread_communicators(ranks_, "world", options);
    std::vector<std::jthread> threads;
    for (auto& communicator : communicators) {
      threads.emplace_back([&body, own = std::move(communicator)] { body(*own); });
    }
  }
  void meet() override { meeting_.arrive_and_wait(); }

 private:
  int ranks_;
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

std::unique_ptr<RankRunner> threads(int ranks) { return std::make_unique<ThreadRunner>(ranks); }
std::unique_ptr<RankRunner> self(int /*ranks*/) { return std::make_unique<SelfRunner>(); }

INSTANTIATE_TEST_SUITE_P(Communicator, CommunicatorConformanceTest,
                         testing::Values(CommunicatorFactory{"self", 1, self},
                                         CommunicatorFactory{"1_thread", 1, threads},
                                         CommunicatorFactory{"2_threads", 2, threads},
                                         CommunicatorFactory{"3_threads", 3, threads},
                                         CommunicatorFactory{"4_threads", 4, threads},
                                         CommunicatorFactory{"7_threads", 7, threads}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
