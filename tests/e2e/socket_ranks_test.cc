#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/tiny_training.h"

// Ranks as processes with torchrun's variables, which connect to each other by sockets.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

const Arguments kSocketSteps = {"--max-steps", "6"};

Outcome train_over_sockets(const TinyTraining& training, int ranks, const std::string& run,
                           const Arguments& more) {
  return ProgramRun(training.command(run, kSocketSteps + more), {},
                    {socket_ranks_path(), std::to_string(ranks)})
      .wait();
}

Arguments torchrun_variables(int rank, int ranks) {
  return {"env",
          "RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(ranks),
          "LOCAL_RANK=" + std::to_string(rank),
          "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=29500",
          "TORCHELASTIC_RUN_ID=socket-ranks-test"};
}

TEST(SocketRanks, HaveTheBitsOfRanksAsThreads) {
  const TinyTraining training(4);
  training.train("threads", kSocketSteps + Arguments{"--local-ranks", "2"});
  for (const char* stage : {"0", "1", "3"}) {
    const Outcome outcome = train_over_sockets(training, 2, stage, {"--zero-stage", stage});
    EXPECT_EQ(outcome.code, 0) << outcome;
    training.expect_same(stage, "threads", "final");
  }
  const Arguments nvme =
      training.nvme() + Arguments{"--place-optimizer", "nvme", "--place-parameters", "nvme"};
  const Outcome on_drive =
      train_over_sockets(training, 2, "drive", nvme + Arguments{"--zero-stage", "3"});
  EXPECT_EQ(on_drive.code, 0) << on_drive;
  training.expect_same("drive", "threads", "final");
  EXPECT_TRUE(training.nvme_is_empty());
}

TEST(SocketRanks, InPipelinesHaveTheBitsOfThreads) {
  const TinyTraining training(4);
  training.train("threads", kSocketSteps + Arguments{"--local-ranks", "2"});
  const Arguments stages = {"--pipeline-parallel", "2"};
  const Outcome pipeline = train_over_sockets(training, 4, "pipeline", stages);
  EXPECT_EQ(pipeline.code, 0) << pipeline;
  training.expect_same("pipeline", "threads", "final");
  const Outcome interleaved = train_over_sockets(
      training, 4, "interleaved",
      stages + Arguments{"--pipeline-schedule", "interleaved", "--zero-stage", "2"});
  EXPECT_EQ(interleaved.code, 0) << interleaved;
  training.expect_same("interleaved", "threads", "final");
}

TEST(SocketRanks, ThatShareUnitsHaveTheBitsOfThreads) {
  const TinyTraining training;
  const Arguments mesh = {"--tensor-parallel", "2", "--zero-stage", "3"};
  training.train("threads", kSocketSteps + mesh + Arguments{"--local-ranks", "4"});
  const Outcome outcome = train_over_sockets(training, 4, "processes", mesh);
  EXPECT_EQ(outcome.code, 0) << outcome;
  training.expect_same("processes", "threads", "final");
  // Rank 0 speaks for all.
  EXPECT_THAT(outcome.output, HasSubstr("step 6/6"));
  EXPECT_EQ(outcome.output.find("step 6/6"), outcome.output.rfind("step 6/6")) << outcome;
}

TEST(SocketRanks, ResumeAsThreadsAndAlone) {
  const TinyTraining training(4);
  training.train("alone", kSocketSteps);
  const Arguments stages = {"--pipeline-parallel", "2"};
  const Outcome outcome =
      train_over_sockets(training, 2, "run", stages + Arguments{"--stop-after-step", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  training.train("run",
                 kSocketSteps + stages +
                     Arguments{"--local-ranks", "2", "--resume", "auto", "--stop-after-step", "4"});
  training.train("run", kSocketSteps + Arguments{"--resume", "auto"});
  training.expect_same("run", "alone", "final");
}

// A rank dies in the middle of a step. The others say which one it was, and end.
TEST(SocketRanks, AKilledRankEndsTheOthersAndIsNamed) {
  const TinyTraining training(4);
  ProgramRun run(training.command(
                     "run", training.nvme() + Arguments{"--place-optimizer", "nvme", "--max-steps",
                                                        "1000000", "--checkpoint-every", "10"}),
                 {}, {socket_ranks_path(), "3"});
  ASSERT_TRUE(run.wait_for("\nsaved ")) << run.wait();
  ASSERT_TRUE(run.kill_a_descendant("--run-dir"));
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome;  // of the killed rank; the others end with 1
  EXPECT_THAT(outcome.errors, HasSubstr("rank 0 has died")) << outcome;
  EXPECT_FALSE(training.directory().has("run/final"));
  EXPECT_TRUE(training.nvme_is_empty());
}

// torchrun passes SIGTERM on to all of its processes.
TEST(SocketRanks, SaveTogetherOnASignal) {
  const TinyTraining training;
  ProgramRun run(training.command("run", {"--max-steps", "1000000", "--checkpoint-every", "0"}), {},
                 {socket_ranks_path(), "2"});
  ASSERT_TRUE(run.wait_for("\nstep ")) << run.wait();
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_GT(training.last_committed("run"), 0);
  EXPECT_FALSE(training.directory().has("run/final"));
}

TEST(SocketRanks, AWrongFlagEndsAllWithItsCode) {
  const TinyTraining training;
  const Outcome outcome = train_over_sockets(training, 2, "run", {"--pipeline-parallel", "3"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("3 pipeline stages"));
}

// Token 3000 has an id that the model does not have, and one of the ranks has to train on it.
TEST(SocketRanks, BadDataOfOneEndsAllOfThem) {
  const TinyTraining training;
  std::string tokens(2 * 6000, '\0');
  tokens.replace(2 * 3000, 2, "\x2c\x01");
  const Arguments data = {"--data",
                          training.directory().write("tokens.u16", tokens),
                          "--data-format",
                          "raw-u16",
                          "--sequence-length",
                          "16"};
  const Outcome outcome =
      ProgramRun(training.command("run", data + Arguments{"--max-steps", "1000"}), {},
                 {socket_ranks_path(), "2"})
          .wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  for (const char* said : {"rank 0: ", "rank 1: ", "token 3000 has id 300"}) {
    EXPECT_THAT(outcome.errors, HasSubstr(said));
  }
}

TEST(SocketRanks, ThatDoNotComeAreNamed) {
  const TinyTraining training;
  const Outcome outcome =
      ProgramRun(training.command("run", kSocketSteps + Arguments{"--collective-timeout", "1"}), {},
                 torchrun_variables(0, 3))
          .wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("ranks 1, 2"));
  EXPECT_FALSE(training.directory().has("run"));
}

// In a shell of srun --pty only one process runs, and it is the first.
TEST(SocketRanks, OnlyTheFirstTellsWhatIsDoubtful) {
  const TinyTraining training;
  for (const char* rank : {"0", "1"}) {
    const std::string number(rank);
    const Arguments variables = {"env",
                                 "MASTER_ADDR=127.0.0.1",
                                 "SLURM_STEP_ID=0",
                                 "SLURM_PROCID=" + number,
                                 "SLURM_LOCALID=" + number,
                                 "SLURM_NODEID=0",
                                 "SLURM_STEP_NUM_TASKS=2",
                                 "SLURM_STEP_TASKS_PER_NODE=2"};
    const Arguments arguments =
        training.command("run", kSocketSteps + Arguments{"--collective-timeout", "1"});
    const Outcome outcome = ProgramRun(arguments, {}, variables).wait();
    EXPECT_EQ(outcome.code, 1) << outcome;
    EXPECT_EQ(outcome.errors.find("srun --pty") != std::string::npos, number == "0") << outcome;
    EXPECT_FALSE(training.directory().has("run"));
  }
}

// All ranks together print one document.
TEST(SocketRanks, MeasureTheirCollectives) {
  const Outcome outcome =
      ProgramRun({"bench", "collective", "--small", "--json"}, {}, {socket_ranks_path(), "2"})
          .wait();
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("socket_all_reduce_fp32_64kib"));
  EXPECT_EQ(outcome.output.find("\"schema\""), outcome.output.rfind("\"schema\"")) << outcome;
}

}  // namespace
}  // namespace terrace
