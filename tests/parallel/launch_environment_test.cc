#include "parallel/launch_environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "parallel/rendezvous.h"

namespace terrace {
namespace {

using testing::HasSubstr;

const EnvironmentVariables kTorchrun = {{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "node7"},
                                        {"MASTER_PORT", "1234"}};
const EnvironmentVariables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const EnvironmentVariables kSrun = {{"SLURM_STEP_ID", "0"},
                                    {"SLURM_PROCID", "17"},
                                    {"SLURM_LOCALID", "1"},
                                    {"SLURM_NODEID", "2"},
                                    {"SLURM_NTASKS", "20"},
                                    {"SLURM_STEP_NUM_TASKS", "20"},
                                    {"SLURM_STEP_NODELIST", "n[03-04,07],m1"},
                                    {"SLURM_TASKS_PER_NODE", "8(x2),4"}};
const EnvironmentVariables kSalloc = {{"SLURM_JOB_ID", "9"},  {"SLURM_PROCID", "0"},
                                      {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"},
                                      {"SLURM_NTASKS", "20"}, {"SLURM_TASKS_PER_NODE", "8(x2),4"}};

EnvironmentVariables join(EnvironmentVariables a, const EnvironmentVariables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

TEST(LaunchEnvironmentTest, NothingIsASingleProcess) {
  const LaunchEnvironment launch = detect_launch({{"PATH", "/bin"}});
  EXPECT_EQ(launch.source, LaunchSource::kSingle);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_TRUE(launch.doubt.empty());
}

// The agent's store listens on the port where rank 0 would listen under other launchers.
TEST(LaunchEnvironmentTest, TorchrunTellsJobsAndAttemptsApart) {
  EXPECT_FALSE(detect_launch(kTorchrun).master_port_is_taken);
  const LaunchEnvironment launch =
      detect_launch(join(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RUN_ID", "job-7"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_TRUE(launch.master_port_is_taken);
  EXPECT_EQ(launch.job, "job-7");
  EXPECT_EQ(launch.attempt, 2);
  const RendezvousOptions options = rendezvous_options(launch);
  EXPECT_TRUE(options.port_is_taken);
  EXPECT_EQ(options.address, launch.master_address);
  EXPECT_EQ(options.port, launch.master_port);
  EXPECT_EQ(options.job, "job-7");
  EXPECT_EQ(options.attempt, 2);
  EXPECT_EQ(options.rank, launch.rank);
  EXPECT_EQ(options.size, launch.size);
  EXPECT_EQ(options.local_rank, launch.local_rank);
  EXPECT_EQ(options.local_size, launch.local_size);
  EXPECT_FALSE(detect_launch(join(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
                   .master_port_is_taken);
  EXPECT_THROW(detect_launch(join(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "x"}})),
               EnvironmentError);
}

TEST(LaunchEnvironmentTest, Torchrun) {
  const LaunchEnvironment launch = detect_launch(kTorchrun);
  EXPECT_EQ(launch.source, LaunchSource::kTorchrun);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_address, "node7");
  EXPECT_EQ(launch.master_port, 1234);
  EXPECT_FALSE(launch.is_mpi_job);
}

TEST(LaunchEnvironmentTest, APortIsOneOfThoseThereAre) {
  for (const char* port : {"1", "65535"}) {
    EXPECT_EQ(detect_launch(join(kTorchrun, {{"MASTER_PORT", port}})).master_port, std::stoi(port));
  }
  for (const std::string port : {"0", "65536", "-1", "http", ""}) {
    try {
      detect_launch(join(kTorchrun, {{"MASTER_PORT", port}}));
      ADD_FAILURE() << "taken for a port: " << port;
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("MASTER_PORT=" + port));
    }
  }
}

TEST(LaunchEnvironmentTest, OpenMpi) {
  const LaunchEnvironment launch = detect_launch(kOpenMpi);
  EXPECT_EQ(launch.source, LaunchSource::kOpenMpi);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_TRUE(launch.is_mpi_job);
}

TEST(LaunchEnvironmentTest, HydraAndMvapich) {
  const LaunchEnvironment hydra = detect_launch(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}});
  EXPECT_EQ(hydra.source, LaunchSource::kHydra);
  EXPECT_EQ(hydra.rank, 1);
  const LaunchEnvironment mvapich = detect_launch({{"MV2_COMM_WORLD_RANK", "1"},
                                                   {"MV2_COMM_WORLD_SIZE", "2"},
                                                   {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                                                   {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mvapich.source, LaunchSource::kMvapich);
  EXPECT_TRUE(mvapich.is_mpi_job);
}

TEST(LaunchEnvironmentTest, SlurmStep) {
  const LaunchEnvironment launch = detect_launch(kSrun);
  EXPECT_EQ(launch.source, LaunchSource::kSlurm);
  EXPECT_EQ(launch.rank, 17);
  EXPECT_EQ(launch.size, 20);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_address, "n03");
  EXPECT_FALSE(launch.is_mpi_job);
  EXPECT_THAT(launch.doubt, HasSubstr("srun --pty"));
  EXPECT_TRUE(detect_launch(join(kSrun, {{"PMIX_RANK", "17"}})).is_mpi_job);
}

// Without MPI the ranks of any launcher need a place to meet.
TEST(LaunchEnvironmentTest, UsersMaySayWhereRanksMeet) {
  const EnvironmentVariables place = {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "2345"}};
  for (const EnvironmentVariables& launcher : {kSrun, kOpenMpi}) {
    const LaunchEnvironment launch = detect_launch(join(launcher, place));
    EXPECT_EQ(launch.master_address, "10.0.0.7");
    EXPECT_EQ(launch.master_port, 2345);
    EXPECT_FALSE(launch.master_port_is_taken);
  }
  EXPECT_EQ(detect_launch(kOpenMpi).master_address, "127.0.0.1");
  EXPECT_EQ(detect_launch(place).master_address, "127.0.0.1");  // one process meets nobody
}

// Two jobs may use one machine, and the same ports.
TEST(LaunchEnvironmentTest, JobsHaveTheNamesOfTheirLaunchers) {
  EXPECT_EQ(detect_launch(join(kSrun, {{"SLURM_JOB_ID", "91"}})).job, "91.0");
  EXPECT_EQ(detect_launch(join(kOpenMpi, {{"PMIX_NAMESPACE", "2871590913"}})).job, "2871590913");
  EXPECT_EQ(detect_launch(kOpenMpi).job, "");
}

// The shells of sbatch and salloc look like rank 0 of all tasks.
TEST(LaunchEnvironmentTest, SlurmAllocationWithoutAStepIsOneProcess) {
  const LaunchEnvironment launch = detect_launch(kSalloc);
  EXPECT_EQ(launch.source, LaunchSource::kSingle);
  EXPECT_EQ(launch.size, 1);
  EXPECT_THAT(launch.doubt, HasSubstr("20 tasks"));
}

TEST(LaunchEnvironmentTest, LaunchersInsideOfSlurmComeFirst) {
  EXPECT_EQ(detect_launch(join(kSrun, kOpenMpi)).source, LaunchSource::kOpenMpi);
  EXPECT_EQ(detect_launch(join(kSalloc, kOpenMpi)).size, 4);
  EXPECT_EQ(detect_launch(join(join(kSrun, kOpenMpi), kTorchrun)).source, LaunchSource::kTorchrun);
}

// srun --mpi=pmi2 sets two of Hydra's variables.
TEST(LaunchEnvironmentTest, AnIncompleteSetIsPassedOverWhereAnotherIsComplete) {
  const auto pmi = join(kSrun, {{"PMI_RANK", "17"}, {"PMI_SIZE", "20"}});
  EXPECT_EQ(detect_launch(pmi).source, LaunchSource::kSlurm);
  EXPECT_TRUE(detect_launch(pmi).is_mpi_job);
}

// Without a refusal each process would train alone, on the same run.
TEST(LaunchEnvironmentTest, HalfASetOfSeveralProcessesIsRefused) {
  const auto halves = std::to_array<EnvironmentVariables>(
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       {{"WORLD_SIZE", "2"}},
       {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}},
       {{"OMPI_COMM_WORLD_RANK", "1"}},
       {{"MV2_COMM_WORLD_SIZE", "4"}, {"MV2_COMM_WORLD_RANK", "0"}},
       {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prun@1"}},
       {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}}});
  for (const EnvironmentVariables& half : halves) {
    const std::string line = fmt::format("{}={}", half.rbegin()->first, half.rbegin()->second);
    try {
      const LaunchEnvironment launch = detect_launch(half);
      ADD_FAILURE() << line << ": " << launch.source_is;
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr(line));
      EXPECT_THAT(error.remedy(), HasSubstr("unset"));
    }
  }
}

TEST(LaunchEnvironmentTest, HalfASetOfOneProcessIsASingleProcess) {
  for (const EnvironmentVariables& half :
       {EnvironmentVariables{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
        EnvironmentVariables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMIX_RANK", "0"}},
        EnvironmentVariables{{"RANK", "senior"}}}) {
    EXPECT_EQ(detect_launch(half).source, LaunchSource::kSingle) << half.begin()->first;
  }
}

// salloc starts its shell as a step of one task, and sets the allocation's numbers as well.
TEST(LaunchEnvironmentTest, TheInteractiveStepOfAnAllocationIsOneProcess) {
  const LaunchEnvironment launch = detect_launch(
      join(kSalloc, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_TRUE(launch.doubt.empty());
}

// Hydra's ranks look like this to Open MPI: each is a world of its own.
TEST(LaunchEnvironmentTest, AnMpiThatFindsOtherRanksIsRefused) {
  const LaunchEnvironment launch = detect_launch(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  check_mpi_world(launch, {1, 2, "MPICH 4"});
  for (const auto& [rank, size] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 3)}) {
    try {
      check_mpi_world(launch, {rank, size, "Open MPI v4.1.4"});
      ADD_FAILURE() << rank << " of " << size;
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("PMI_RANK=1 PMI_SIZE=2"));
      EXPECT_THAT(error.remedy(), HasSubstr("mpirun of Open MPI v4.1.4"));
    }
  }
}

TEST(LaunchEnvironmentTest, NonsenseIsRefused) {
  EXPECT_THROW(detect_launch(join(kTorchrun, {{"RANK", "x"}})), EnvironmentError);
  EXPECT_THROW(detect_launch(join(kTorchrun, {{"RANK", "8"}})), EnvironmentError);
  EXPECT_THROW(detect_launch(join(kTorchrun, {{"RANK", "-1"}})), EnvironmentError);
  EXPECT_THROW(detect_launch(join(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "9"}})),
               EnvironmentError);
  EXPECT_THROW(detect_launch(join(kSrun, {{"SLURM_TASKS_PER_NODE", "8"}})), EnvironmentError);
}

TEST(LaunchEnvironmentTest, LocalRanksAreThreadsOfOneProcess) {
  const LaunchEnvironment launch = detect_launch(kSalloc, 4);
  EXPECT_EQ(launch.source, LaunchSource::kLocalRanks);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_THROW(detect_launch(kOpenMpi, 4), ConfigError);
}

TEST(SlurmListTest, FirstHost) {
  EXPECT_EQ(first_slurm_host("n[01-04,07]"), "n01");
  EXPECT_EQ(first_slurm_host("gpu-a,gpu-b"), "gpu-a");
  EXPECT_EQ(first_slurm_host("rack[2,5]n[10-12],x"), "rack2n10");
  EXPECT_EQ(first_slurm_host("single"), "single");
}

TEST(SlurmListTest, TasksOfANode) {
  EXPECT_EQ(slurm_tasks_of_node("8(x2),4", 0), 8);
  EXPECT_EQ(slurm_tasks_of_node("8(x2),4", 1), 8);
  EXPECT_EQ(slurm_tasks_of_node("8(x2),4", 2), 4);
  EXPECT_EQ(slurm_tasks_of_node("8(x2),4", 3), std::nullopt);
  EXPECT_EQ(slurm_tasks_of_node("8(2)", 0), std::nullopt);
  EXPECT_EQ(slurm_tasks_of_node("", 0), std::nullopt);
}

}  // namespace
}  // namespace terrace
