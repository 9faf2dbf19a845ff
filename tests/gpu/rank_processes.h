#pragma once

#include <string>
#include <vector>

#include "parallel/launch_environment.h"

// Ranks as processes of this machine, each of which is this program again and runs some of its
// tests: those that are there for a process that is a rank.
namespace terrace::test {

// The numbers of ranks that tests of a rank are to be instantiated for: that of the job where
// this process is one, else none.
std::vector<int> ranks_of_own_job();

// This rank's place in the job. Once per process.
const LaunchEnvironment& own_place();

// Returns when all ranks of the job have come here. They need no communicator for it.
void meet_ranks();

// A directory that all ranks have, and nobody else.
std::string directory_of_job();

// Starts so many ranks, as torchrun would, each to run the tests that `filter` names
// (--gtest_filter), and expects all of them to pass.
//
// Where there are fewer GPUs than ranks, some share one. NCCL refuses two ranks of one host on one
// GPU, so each is given a host's name of its own (NCCL_HOSTID): the ranks then meet by sockets, as
// ranks of several hosts do, and take turns on the GPU.
void expect_ranks_pass(int ranks, const std::string& filter);

}  // namespace terrace::test
