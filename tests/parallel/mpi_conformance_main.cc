#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "parallel/mpi/mpi_session.h"
#include "tests/conformance/communicator_conformance.h"

// Runs the suite of communicators as one rank of an MPI job: every process runs every test.
namespace terrace {
namespace {

MpiSession* session = nullptr;  // set by main()
MpiPlacement placement;         // from main()'s arguments

HierarchicalUse hierarchical = HierarchicalUse::kAuto;  // from main()'s arguments

class MpiRunner final : public RankRunner {
 public:
  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    CommunicatorOptions own = options;
    own.hierarchical = hierarchical;
    const auto world = session->make_world("world", own, placement);
    body(*world);
    session->barrier();
  }
  void meet() override { session->barrier(); }
};

std::unique_ptr<RankRunner> processes(int /*ranks*/) { return std::make_unique<MpiRunner>(); }

// Evaluated when the tests are registered, once the session is there.
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformanceTest,
                         testing::Values(CommunicatorFactory{"processes", session->size(),
                                                             processes}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace

// mpi_conformance RANKS_PER_HOST [windows|chains]
int main(int argc, char** argv) {
  terrace::MpiSession own_session;
  terrace::session = &own_session;
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) terrace::placement.ranks_per_host = std::atoi(argv[1]);
  const std::string way = argc > 2 ? argv[2] : "";
  terrace::placement.reads_peers = way != "windows";
  if (way == "chains") terrace::hierarchical = terrace::HierarchicalUse::kOn;
  return RUN_ALL_TESTS();
}
