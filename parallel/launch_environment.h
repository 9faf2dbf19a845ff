#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

// Which rank of how many this process is, by the variables that launchers set. Terrace has no
// launcher of its own.
namespace terrace {

inline constexpr int kTcpPortMax = 65535;

enum class LaunchSource : std::uint8_t {
  kSingle,      // nobody started more than one
  kLocalRanks,  // --local-ranks: all ranks are threads of this process
  kTorchrun,
  kOpenMpi,
  kHydra,  // MPICH, Intel MPI
  kMvapich,
  kSlurm
};

struct LaunchEnvironment {
  LaunchSource source = LaunchSource::kSingle;
  std::string source_is = "a single process";  // in words, for the log
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // on this host
  int local_size = 1;
  // MPI_Init() finds the same ranks, if it is the launcher's MPI: see check_mpi_world().
  bool is_mpi_job = false;
  std::string variables;  // that say so: "PMI_RANK=0 PMI_SIZE=2"
  // Where the ranks may meet: of torchrun, else the step's first host, else this host.
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  // The launcher listens on that port itself: torchrun's agent, for its own store.
  bool master_port_is_taken = false;
  // What torchrun calls the job, and how often this host's agent has started it again: the agents
  // of other hosts may count otherwise.
  std::string job;
  int attempt = 0;
  // What to tell the user if ranks do not come, or before a run of one rank that may have been
  // meant to have more. Empty where nothing is doubtful.
  std::string doubt;
};

using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

// Of this process.
EnvironmentVariables environment_variables();

// The first launcher whose variables are all there, in the order of LaunchSource from kTorchrun on:
// torchrun and mpirun run inside of Slurm, and not the other way round. Throws EnvironmentError
// where they make no sense together, and where some of a launcher's variables say that this is one
// of several processes and the others are missing; ConfigError for `local_ranks` (--local-ranks)
// under a launcher that started several processes. Pure.
LaunchEnvironment detect_launch(const EnvironmentVariables& variables,
                                std::optional<int> local_ranks = std::nullopt);

// What MPI_Init() has found.
struct MpiWorldFacts {
  int rank = 0;
  int size = 1;
  std::string library;  // "Open MPI v4.1.4"
};

// Throws EnvironmentError where MPI has found other ranks than the launcher's variables say: it is
// the MPI of another launcher, or the variables are left from an earlier launch, and each process
// would train alone. Pure.
void check_mpi_world(const LaunchEnvironment& launch, const MpiWorldFacts& found);

// "n[01-04,07],m3" -> "n01"
std::string first_slurm_host(const std::string& node_list);
// "8(x2),4" -> 8, 8, 4: the entry of a node; nothing where the list has none, or is not understood.
std::optional<int> slurm_tasks_of_node(const std::string& tasks_per_node, int node);

}  // namespace terrace
