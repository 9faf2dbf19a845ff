#include "parallel/launch_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

// The variable names of one launcher.
struct Names {
  LaunchSource source;
  std::string_view is;
  std::string_view rank, size, local_rank, local_size;
  bool is_mpi_job;
};

constexpr auto kLaunchers = std::to_array<Names>(
    {{LaunchSource::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
      false},
     {LaunchSource::kOpenMpi, "mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
     {LaunchSource::kHydra, "mpiexec of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE",
      "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
     {LaunchSource::kMvapich, "mpirun of MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
      "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", true}});

// Rank variables of launchers whose ranks cannot be found out otherwise. If one of them is above 0,
// there are several ranks.
constexpr auto kOtherRanks = std::to_array<std::string_view>(
    {"PMIX_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "PALS_RANKID"});

constexpr const char* kUnsetHalf =
    "start with the mpirun of the MPI that Terrace was built with, with srun or with torchrun; to "
    "run a single process, unset the variables that an earlier launch left behind";

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

class Variables {
 public:
  explicit Variables(const EnvironmentVariables& all) : all_(all) {}

  bool has(std::string_view name) const { return all_.contains(name); }
  std::string text(std::string_view name) const {
    const auto found = all_.find(name);
    return found == all_.end() ? std::string() : found->second;
  }
  // Returns "NAME=text".
  std::string line(std::string_view name) const { return fmt::format("{}={}", name, text(name)); }
  // Returns whether the variable is a number above `number`.
  bool is_above(int number, std::string_view name) const {
    return parse_number(text(name)).value_or(number) > number;
  }
  // Throws if the variable is not a number.
  int number(std::string_view name) const {
    const std::optional<int> value = parse_number(text(name));
    if (!value || *value < 0) {
      throw EnvironmentError(fmt::format("the variable {}={} is not a number", name, text(name)),
                             "launchers set it: unset it if there is no launcher");
    }
    return *value;
  }
  int port(std::string_view name) const {
    const int value = number(name);
    if (value < 1 || value > kTcpPortMax) {
      throw EnvironmentError(
          fmt::format("the variable {}={} is not a port (1 to {})", name, value, kTcpPortMax),
          "launchers set it: unset it if there is no launcher");
    }
    return value;
  }
  std::string first_of(std::string_view name, std::string_view otherwise) const {
    return has(name) ? text(name) : text(otherwise);
  }

 private:
  const EnvironmentVariables& all_;
};

void check_launch(const LaunchEnvironment& launch) {
  const bool is_sound = launch.rank < launch.size && launch.local_rank < launch.local_size &&
                        launch.local_size <= launch.size;
  if (is_sound) return;
  throw EnvironmentError(
      fmt::format("{} says that this is rank {} of {}, but {} of {} on this host", launch.source_is,
                  launch.rank, launch.size, launch.local_rank, launch.local_size),
      "unset the variables that an earlier launch left behind");
}

// Refuses a launch where only some variables are set: a process that does not know its rank would
// train alone, beside the others.
void refuse_half(const Variables& variables, const Names& names) {
  if (!variables.is_above(1, names.size) && !variables.is_above(0, names.rank)) return;
  std::vector<std::string> there;
  std::vector<std::string_view> missing;
  for (const std::string_view name : {names.rank, names.size, names.local_rank, names.local_size}) {
    if (variables.has(name)) {
      there.push_back(variables.line(name));
    } else {
      missing.push_back(name);
    }
  }
  throw EnvironmentError(
      fmt::format("{} says that {} has started several processes, but {} is not set",
                  fmt::join(there, " "), names.is, fmt::join(missing, ", ")),
      kUnsetHalf);
}

void refuse_rank_alone(const Variables& variables) {
  for (const std::string_view name : kOtherRanks) {
    if (!variables.is_above(0, name)) continue;
    throw EnvironmentError(
        fmt::format(
            "{} says that this is one of several processes, but no variable says how many there "
            "are",
            variables.line(name)),
        kUnsetHalf);
  }
}

std::optional<LaunchEnvironment> by_names(const Variables& variables, const Names& names) {
  for (const std::string_view name : {names.rank, names.size, names.local_rank, names.local_size}) {
    if (!variables.has(name)) return std::nullopt;
  }
  LaunchEnvironment launch;
  launch.source = names.source;
  launch.source_is = names.is;
  launch.rank = variables.number(names.rank);
  launch.size = variables.number(names.size);
  launch.local_rank = variables.number(names.local_rank);
  launch.local_size = variables.number(names.local_size);
  launch.is_mpi_job = names.is_mpi_job;
  launch.variables = fmt::format("{} {}", variables.line(names.rank), variables.line(names.size));
  check_launch(launch);
  return launch;
}

// Returns how many of the step's tasks are on this host.
int local_tasks_of_slurm(const Variables& variables) {
  const std::string tasks = variables.first_of("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::optional<int> local = slurm_tasks_of_node(tasks, variables.number("SLURM_NODEID"));
  if (local) return *local;
  throw EnvironmentError(fmt::format("srun does not say how many ranks this host has: {} in "
                                     "SLURM_TASKS_PER_NODE",
                                     tasks.empty() ? "nothing" : tasks),
                         "start with mpirun or torchrun");
}

// Returns a launch only inside of a step: the shells of sbatch and salloc also have SLURM_PROCID=0
// and SLURM_NTASKS.
std::optional<LaunchEnvironment> by_slurm(const Variables& variables) {
  for (const std::string_view name :
       {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}) {
    if (!variables.has(name)) return std::nullopt;
  }
  const bool in_step = variables.has("SLURM_STEP_NUM_TASKS");
  if (!in_step && !variables.has("SLURM_NTASKS")) return std::nullopt;
  LaunchEnvironment launch;
  launch.source = LaunchSource::kSlurm;
  launch.source_is = "srun";
  launch.rank = variables.number("SLURM_PROCID");
  const std::string_view size = in_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  launch.size = variables.number(size);
  launch.local_rank = variables.number("SLURM_LOCALID");
  // The interactive step of an allocation is one task, and the allocation's numbers are larger.
  launch.local_size = launch.size == 1 ? 1 : local_tasks_of_slurm(variables);
  launch.is_mpi_job = variables.has("PMIX_RANK") || variables.has("PMI_RANK");
  launch.variables = fmt::format("{} {}", variables.line("SLURM_PROCID"), variables.line(size));
  // A shell of `srun --pty` looks like one of the step's tasks.
  if (launch.size > 1) {
    launch.doubt = fmt::format(
        "srun says that there are {} ranks, but a shell of srun --pty starts only one: use srun "
        "for the command itself, or unset SLURM_STEP_ID to run one rank",
        launch.size);
  }
  check_launch(launch);
  return launch;
}

LaunchEnvironment by_launcher(const Variables& variables) {
  for (const Names& names : kLaunchers) {
    if (const auto launch = by_names(variables, names)) return *launch;
  }
  if (const auto launch = by_slurm(variables)) return *launch;
  for (const Names& names : kLaunchers) refuse_half(variables, names);
  refuse_rank_alone(variables);
  LaunchEnvironment single;
  const std::optional<int> tasks = parse_number(variables.text("SLURM_NTASKS"));
  if (tasks.value_or(1) > 1) {
    single.doubt = fmt::format(
        "this shell belongs to a Slurm allocation of {} tasks, but runs only one process: srun "
        "starts all of them",
        *tasks);
  }
  return single;
}

// Returns a name for the job, by the launcher; empty where it gives none.
std::string job_of(const Variables& variables, LaunchSource source) {
  if (source == LaunchSource::kTorchrun) return variables.text("TORCHELASTIC_RUN_ID");
  if (variables.has("SLURM_JOB_ID") && variables.has("SLURM_STEP_ID")) {
    return fmt::format("{}.{}", variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID"));
  }
  return variables.text("PMIX_NAMESPACE");
}

void find_meeting_place(const Variables& variables, LaunchEnvironment& launch) {
  if (launch.size == 1 && launch.source != LaunchSource::kTorchrun) return;
  if (variables.has("MASTER_ADDR")) {
    launch.master_address = variables.text("MASTER_ADDR");
  } else if (variables.has("SLURM_STEP_NODELIST")) {
    launch.master_address = first_slurm_host(variables.text("SLURM_STEP_NODELIST"));
  }
  if (variables.has("MASTER_PORT")) launch.master_port = variables.port("MASTER_PORT");
  launch.job = job_of(variables, launch.source);
  if (launch.source != LaunchSource::kTorchrun) return;
  launch.master_port_is_taken = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variables.has("TORCHELASTIC_RESTART_COUNT")) {
    launch.attempt = variables.number("TORCHELASTIC_RESTART_COUNT");
  }
}

}  // namespace

EnvironmentVariables environment_variables() {
  EnvironmentVariables all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

LaunchEnvironment detect_launch(const EnvironmentVariables& variables,
                                std::optional<int> local_ranks) {
  const Variables all(variables);
  LaunchEnvironment launch = by_launcher(all);
  if (local_ranks) {
    if (launch.size > 1) {
      throw ConfigError(fmt::format("--local-ranks {} was given, but {} has started {} ranks",
                                    *local_ranks, launch.source_is, launch.size),
                        "use only one of the two");
    }
    launch = {};
    launch.source = LaunchSource::kLocalRanks;
    launch.source_is = fmt::format("--local-ranks {}", *local_ranks);
    launch.size = *local_ranks;
    launch.local_size = *local_ranks;
    return launch;
  }
  find_meeting_place(all, launch);
  return launch;
}

void check_mpi_world(const LaunchEnvironment& launch, const MpiWorldFacts& found) {
  if (found.size == launch.size && found.rank == launch.rank) return;
  throw EnvironmentError(
      fmt::format("according to {} this is process {} of {} of {}, but MPI ({}) reports process {} "
                  "of {}",
                  launch.variables, launch.rank, launch.size, launch.source_is, found.library,
                  found.rank, found.size),
      fmt::format("start with the mpirun of {}, or unset these variables to train with one process",
                  found.library));
}

std::string first_slurm_host(const std::string& node_list) {
  std::string host;
  for (std::size_t at = 0; at < node_list.size(); ++at) {
    if (node_list[at] == ',') break;
    if (node_list[at] != '[') {
      host += node_list[at];
      continue;
    }
    const std::size_t close = std::min(node_list.find(']', at), node_list.size());
    const std::size_t end = std::min(node_list.find_first_of(",-]", at), close);
    host += node_list.substr(at + 1, end - at - 1);
    at = close;
  }
  return host;
}

std::optional<int> slurm_tasks_of_node(const std::string& tasks_per_node, int node) {
  std::string_view rest = tasks_per_node;
  int first = 0;  // the first node of the entry
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const std::size_t open = entry.find('(');
    const std::optional<int> tasks = parse_number(entry.substr(0, open));
    std::optional<int> nodes = 1;
    if (open != std::string_view::npos) {
      if (!entry.substr(open).starts_with("(x") || !entry.ends_with(')')) return std::nullopt;
      nodes = parse_number(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!tasks || !nodes) return std::nullopt;
    if (node < first + *nodes) return tasks;
    first += *nodes;
  }
  return std::nullopt;
}

}  // namespace terrace
