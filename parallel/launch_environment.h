#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

// Finds which rank this process is, and of how many, from the variables that launchers set. Terrace
// has no launcher of its own.
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
  // MPI_Init() finds the same ranks, if it belongs to the launcher's MPI: see check_mpi_world().
  bool is_mpi_job = false;
  std::string variables;  // that say so, e.g. "PMI_RANK=0 PMI_SIZE=2"
  // Where the ranks may meet: at MASTER_ADDR, which torchrun sets and users may, else on the first
  // host of Slurm's step, else on this host.
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  // Whether the launcher listens on that port itself, as torchrun's agent does for its own store.
  bool master_port_is_taken = false;
  // The launcher's name for the job, and how often torchrun's agent on this host has restarted it.
  // The agents of other hosts may count differently.
  std::string job;
  int attempt = 0;
  // A text for the user if ranks do not come, or before a run of one rank that may have been meant
  // to have more. Empty where nothing is doubtful.
  std::string doubt;
};

using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

// Returns the variables of this process.
EnvironmentVariables environment_variables();

// Returns the ranks of the first launcher whose variables are all set, in the order of LaunchSource
// from kTorchrun on: torchrun and mpirun run inside of Slurm, and not the other way round. Throws
// EnvironmentError where the values make no sense together, and where some of a launcher's
// variables say that this is one of several processes while others are missing. Throws ConfigError
// if `local_ranks` (--local-ranks) is given under a launcher that started several processes. Pure.
LaunchEnvironment detect_launch(const EnvironmentVariables& variables,
                                std::optional<int> local_ranks = std::nullopt);

// The ranks that MPI_Init() has found.
struct MpiWorldFacts {
  int rank = 0;
  int size = 1;
  std::string library;  // "Open MPI v4.1.4"
};

// Throws EnvironmentError where MPI has found other ranks than the launcher's variables say. Then
// it is the MPI of another launcher, or the variables are left from an earlier launch, and each
// process would train alone. Pure.
void check_mpi_world(const LaunchEnvironment& launch, const MpiWorldFacts& found);

// Returns the first host of a list: "n[01-04,07],m3" -> "n01".
std::string first_slurm_host(const std::string& node_list);
// Returns the entry of a node, of 8, 8 and 4 for "8(x2),4"; nothing where the list has no such
// node, or is not understood.
std::optional<int> slurm_tasks_of_node(const std::string& tasks_per_node, int node);

}  // namespace terrace
