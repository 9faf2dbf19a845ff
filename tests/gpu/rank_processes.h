#pragma once

#include <string>
#include <vector>

#include "parallel/launch_environment.h"

// Ranks as processes of this machine. Each process is this program again and runs some of its
// tests: those that exist only in a process that is a rank.
namespace terrace::test {

// Returns the numbers of ranks that tests of a rank are instantiated for: the job's number if this
// process is a rank, else none.
std::vector<int> ranks_of_own_job();

// Returns this rank's place in the job. It is determined once per process.
const LaunchEnvironment& own_place();

// Waits until all ranks of the job have come here. They need no communicator for it.
void meet_ranks();

// Returns a directory that all ranks of the job share, and no other job uses.
std::string directory_of_job();

// Starts `ranks` ranks, as torchrun would. Each runs the tests that `filter` names
// (--gtest_filter), and all of them must pass.
//
// Where there are fewer GPUs than ranks, some share one. NCCL refuses two ranks of one host on one
// GPU, so each rank gets its own host name (NCCL_HOSTID): the ranks then meet by sockets, as ranks
// of several hosts do, and take turns on the GPU.
void expect_ranks_pass(int ranks, const std::string& filter);

}  // namespace terrace::test
