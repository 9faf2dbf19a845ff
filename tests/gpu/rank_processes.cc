#include "tests/gpu/rank_processes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <span>

#include "memory/cuda/cuda_device.h"
#include "parallel/rendezvous.h"
#include "tests/e2e/program_run.h"

namespace terrace::test {
namespace {

// This variable says that this process is a rank; torchrun's variables may be set for another
// reason.
constexpr const char* kDirectoryVariable = "TERRACE_TEST_RANKS_DIRECTORY";

// The time limit of all ranks of a job together. Ranks that take turns on one GPU need milliseconds
// for a call.
constexpr auto kLimit = std::chrono::seconds(300);
constexpr auto kMeetingTimeout = std::chrono::seconds(120);

// Returns a port between the ports of the rendezvous' own tests and the ports that the system gives
// away. Another job may have it: the rendezvous then tries the ports after it, and tells jobs
// apart.
int port_of_job() { return 32'110 + ::getpid() % 32 * 20; }

Command command_of(int rank, int ranks, const std::string& filter, const std::string& directory) {
  Command command;
  command.words = {"env",
                   fmt::format("RANK={}", rank),
                   fmt::format("WORLD_SIZE={}", ranks),
                   fmt::format("LOCAL_RANK={}", rank),
                   fmt::format("LOCAL_WORLD_SIZE={}", ranks),
                   "MASTER_ADDR=127.0.0.1",
                   fmt::format("MASTER_PORT={}", port_of_job()),
                   "TORCHELASTIC_RUN_ID=" + directory,
                   fmt::format("{}={}", kDirectoryVariable, directory)};
  if (ranks > cuda_device_count()) {
    command.words.push_back(fmt::format("NCCL_HOSTID=rank {}", rank));
    command.words.emplace_back("NCCL_SOCKET_IFNAME=lo");
  }
  command.words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.words.push_back("--gtest_filter=" + filter);
  return command;
}

}  // namespace

std::vector<int> ranks_of_own_job() {
  if (std::getenv(kDirectoryVariable) == nullptr) return {};
  return {own_place().size};
}

const LaunchEnvironment& own_place() {
  static const LaunchEnvironment place = detect_launch(environment_variables());
  return place;
}

void meet_ranks() {
  RendezvousOptions options = rendezvous_options(own_place());
  options.timeout = kMeetingTimeout;
  std::array<std::byte, 1> nothing{};
  share_from_first_rank(options, nothing);
}

std::string directory_of_job() { return std::getenv(kDirectoryVariable); }

void expect_ranks_pass(int ranks, const std::string& filter) {
  const TemporaryDirectory directory;
  std::list<ProgramRun> runs;
  for (int rank = 0; rank < ranks; ++rank) {
    runs.emplace_back(command_of(rank, ranks, filter, directory.path()));
  }
  const auto until = std::chrono::steady_clock::now() + kLimit;
  int rank = 0;
  for (ProgramRun& run : runs) {
    const auto left = until - std::chrono::steady_clock::now();
    const Outcome outcome = run.wait(std::chrono::ceil<std::chrono::seconds>(left));
    EXPECT_EQ(outcome.code, 0) << "rank " << rank << " of " << ranks << ": " << outcome;
    EXPECT_EQ(outcome.output.find("[  SKIPPED ]"), std::string::npos) << outcome;
    EXPECT_NE(outcome.output.find("[  PASSED  ]"), std::string::npos) << outcome;
    EXPECT_EQ(outcome.output.find("[  PASSED  ] 0 tests"), std::string::npos)
        << "no test has a name like " << filter;
    ++rank;
  }
}

}  // namespace terrace::test
