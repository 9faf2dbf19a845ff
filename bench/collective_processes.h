#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "bench/bench.h"
#include "bench/bench_record.h"
#include "bench/collective_plan.h"
#include "parallel/launch_environment.h"

namespace terrace {

// Returns what the names of results begin with if the ranks of this launch are processes: "mpi" or
// "socket", by how they communicate. Returns an empty text if this process is alone.
std::string_view process_ranks_prefix(const LaunchEnvironment& launch);

// Returns the names of all results of ranks that are processes.
std::vector<std::string> process_result_names(std::string_view prefix, const CollectivePlan& plan);

// Measures collectives of this rank with the other ranks of the launch, which are processes. All of
// them call it; rank 0 has the results. Ranks of MPI are measured beside the MPI library's own
// collectives, and ranks that use sockets beside a copy of as many bytes.
void bench_processes(const LaunchEnvironment& launch, const BenchOptions& options,
                     BenchRecord& record, Log& log);

}  // namespace terrace
