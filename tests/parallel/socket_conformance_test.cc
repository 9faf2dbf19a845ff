#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/conformance/communicator_conformance.h"
#include "tests/parallel/socket_ranks_fixture.h"
#include "tests/sanitized.h"

// Runs the suite of communicators between ranks that are connected by sockets. The ranks are
// threads, each with a session of its own: they share nothing that processes could not share.
namespace terrace {
namespace {

class SocketRunner final : public RankRunner {
 public:
  struct Way {
    int ranks_per_host = 0;
    bool reads_peers = true;
    HierarchicalUse hierarchical = HierarchicalUse::kAuto;
  };
  SocketRunner(int ranks, const Way& way) : ranks_(ranks), way_(way), meeting_(ranks) {}

  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    CommunicatorOptions own = options;
    own.hierarchical = way_.hierarchical;
    SocketSetting setting = socket_setting_of(ranks_, way_.ranks_per_host);
    setting.reads_peers = way_.reads_peers;
    std::vector<int> all(static_cast<std::size_t>(ranks_));
    std::iota(all.begin(), all.end(), 0);
    const std::vector<std::string> errors = run_sessions(setting, all, [&](SocketSession& session) {
      body(*session.make_world("world", own));
      session.end(0);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  void meet() override { meeting_.arrive_and_wait(); }

 private:
  const int ranks_;
  const Way way_;
  std::barrier<> meeting_;
};

template <int ranks_per_host, bool reads_peers = true,
          HierarchicalUse hierarchical = HierarchicalUse::kAuto>
std::unique_ptr<RankRunner> by_sockets(int ranks) {
  return std::make_unique<SocketRunner>(
      ranks, SocketRunner::Way{ranks_per_host, reads_peers, hierarchical});
}

std::vector<CommunicatorFactory> socket_ranks() {
  std::vector<CommunicatorFactory> all = {
      {"1_by_sockets", 1, by_sockets<0>},
      {"2_on_one_host", 2, by_sockets<0>},
      {"2_on_two_hosts", 2, by_sockets<1>},
      {"3_by_windows", 3, by_sockets<0, false>},
      {"3_on_two_hosts", 3, by_sockets<2>},
      {"4_in_chains", 4, by_sockets<2, true, HierarchicalUse::kOn>}};
  if (!kSanitized) {
    all.push_back({"3_on_three_hosts", 3, by_sockets<1>});
    all.push_back({"4_on_one_host", 4, by_sockets<0>});
    all.push_back({"4_between_all", 4, by_sockets<2, true, HierarchicalUse::kOff>});
    all.push_back({"many_on_three_hosts", kManyRanks, by_sockets<3>});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sockets, CommunicatorConformanceTest, testing::ValuesIn(socket_ranks()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
