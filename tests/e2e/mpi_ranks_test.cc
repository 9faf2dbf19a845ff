#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/tiny_training.h"

// Ranks as processes that mpirun starts.
namespace terrace {
namespace {

const Arguments kSteps = {"--max-steps", "6"};

// Returns the bytes of this machine's memory. A cgroup may have fewer.
std::size_t machine_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

Outcome train_job(const TinyTraining& training, int ranks, const std::string& run,
                  const Arguments& more) {
  return ProgramRun(training.command(run, more), {}, mpirun(ranks)).wait();
}

TEST(MpiRanks, HaveTheBitsOfRanksAsThreads) {
  const TinyTraining training(4);
  const Arguments stage = {"--zero-stage", "3"};
  const Arguments nvme =
      training.nvme() + Arguments{"--place-optimizer", "nvme", "--place-parameters", "nvme"};
  training.train("threads", kSteps + stage + Arguments{"--local-ranks", "2"});
  const Outcome outcome = train_job(training, 2, "processes", kSteps + stage + nvme);
  EXPECT_EQ(outcome.code, 0) << outcome;
  training.expect_same("processes", "threads", "final");
  EXPECT_TRUE(training.nvme_is_empty());

  const Outcome pipeline =
      train_job(training, 4, "pipeline", kSteps + Arguments{"--pipeline-parallel", "2"});
  EXPECT_EQ(pipeline.code, 0) << pipeline;
  training.expect_same("pipeline", "threads", "final");

  const Outcome interleaved =
      train_job(training, 4, "interleaved",
                kSteps + Arguments{"--pipeline-parallel", "2", "--pipeline-schedule", "interleaved",
                                   "--zero-stage", "2"});
  EXPECT_EQ(interleaved.code, 0) << interleaved;
  training.expect_same("interleaved", "threads", "final");
}

TEST(MpiRanks, ThatShareUnitsHaveTheBitsOfThreads) {
  const TinyTraining training;
  const Arguments mesh = kSteps + Arguments{"--tensor-parallel", "2", "--zero-stage", "3"};
  training.train("threads", mesh + Arguments{"--local-ranks", "4"});
  const Outcome outcome = train_job(training, 4, "processes", mesh);
  EXPECT_EQ(outcome.code, 0) << outcome;
  training.expect_same("processes", "threads", "final");
}

TEST(MpiRanks, ResumeAsThreadsAndAlone) {
  const TinyTraining training(4);
  training.train("alone", kSteps);
  const Arguments stages = kSteps + Arguments{"--pipeline-parallel", "2"};
  const Outcome outcome =
      train_job(training, 2, "run", stages + Arguments{"--stop-after-step", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  training.train("run", stages + Arguments{"--local-ranks", "2", "--resume", "auto",
                                           "--stop-after-step", "4"});
  training.train("run", kSteps + Arguments{"--resume", "auto"});
  training.expect_same("run", "alone", "final");
}

// This happens if each rank has a disk of its own under the name of the run directory.
TEST(MpiRanks, ThatFindDifferentCheckpointsGoOnWithNeither) {
  const TinyTraining training;
  training.train("run", kSteps + Arguments{"--checkpoint-every", "2", "--stop-after-step", "4"});
  const auto from = [&training](const std::string& name) {
    return training.command("run", kSteps + Arguments{"--gradient-accumulation-steps", "1",
                                                      "--resume", training.path("run/" + name)});
  };
  const Arguments second = Arguments{":", "-n", "1", program_path()} + from("checkpoint-4");
  const Outcome outcome = ProgramRun(from("checkpoint-2") + second, {}, mpirun(1)).wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("different checkpoints"), std::string::npos) << outcome;
  EXPECT_TRUE(training.directory().has("run/checkpoint-4/manifest.json"));
  EXPECT_EQ(training.rows("run").size(), 4U);
}

// This happens if the copy on one host is an old one. Nothing is made for such a run.
TEST(MpiRanks, ThatFindDifferentDataDoNotTrain) {
  const TinyTraining training;
  const TinyTraining with_old_copy;
  with_old_copy.directory().write("text.txt", generated_text(5000, 3));
  const Arguments second =
      Arguments{":", "-n", "1", program_path()} + with_old_copy.command("run", kSteps);
  const Outcome outcome =
      ProgramRun(training.command("run", kSteps) + second, {}, mpirun(1)).wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("different data"), std::string::npos) << outcome;
  EXPECT_FALSE(training.directory().has("run"));
  with_old_copy.directory().write("text.txt", generated_text(20'000, 3));  // as many tokens
  const Outcome as_many =
      ProgramRun(training.command("run", kSteps) + second, {}, mpirun(1)).wait();
  EXPECT_EQ(as_many.code, 2) << as_many;
  EXPECT_NE(as_many.errors.find("different data"), std::string::npos) << as_many;
}

// This happens if a flag has been changed on one host.
TEST(MpiRanks, ThatWereStartedWithOtherFlagsDoNotTrain) {
  const TinyTraining training;
  for (const Arguments& other : {Arguments{"--seed", "7"}, Arguments{"--zero-stage", "3"}}) {
    const Arguments second =
        Arguments{":", "-n", "1", program_path()} + training.command("run", kSteps + other);
    const Outcome outcome =
        ProgramRun(training.command("run", kSteps) + second, {}, mpirun(1)).wait();
    EXPECT_EQ(outcome.code, 2) << outcome;
    std::string key = other.front().substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    const std::string said = "rank 1 was started with different flags than rank 0: " + key;
    EXPECT_NE(outcome.errors.find(said), std::string::npos) << outcome;
    EXPECT_FALSE(training.directory().has("run"));
  }
}

TEST(MpiRanks, MayHavePathsAndBudgetsOfTheirOwn) {
  const TinyTraining training;
  const TinyTraining copy;
  const Arguments second =
      Arguments{":", "-n", "1", program_path()} +
      copy.command("run", kSteps + copy.nvme() + Arguments{"--threads", "1", "--log-every", "3"});
  const Outcome outcome =
      ProgramRun(training.command("run", kSteps + training.nvme()) + second, {}, mpirun(1)).wait();
  EXPECT_EQ(outcome.code, 0) << outcome;
}

// Starts two ranks, with flags of their own behind the common ones.
Outcome train_pair(const TinyTraining& training, const std::string& run, const Arguments& common,
                   const std::array<Arguments, 2>& own) {
  const Arguments second =
      Arguments{":", "-n", "1", program_path()} + training.command(run, common + own[1]);
  return ProgramRun(training.command(run, common + own[0]) + second, {}, mpirun(1)).wait();
}

// Returns the least --host-memory of a rank of two.
std::size_t least_host_memory(const TinyTraining& training, const Arguments& common) {
  const Outcome outcome = run_program(training.command(
      "dry", common + Arguments{"--local-ranks", "2", "--threads", "1", "--dry-run", "--json"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  const nlohmann::json document = nlohmann::json::parse(outcome.output);
  for (const auto& result : document.at("results")) {
    if (result.at("name") == "host") return result.at("least_bytes").get<std::size_t>();
  }
  return 0;
}

Arguments limits(std::size_t host_bytes, int threads) {
  return {"--host-memory", std::to_string(host_bytes), "--threads", std::to_string(threads)};
}

nlohmann::json run_file(const TinyTraining& training, const std::string& run) {
  std::ifstream file(training.path(run + "/run.json"));
  return nlohmann::json::parse(file);
}

// The rank with more memory writes less to the drive, whichever of the two it is, and no bit
// changes.
TEST(MpiRanks, WithUnequalBudgetsKeepWhatFits) {
  const TinyTraining training(6, 64);
  const Arguments common =
      kSteps + training.nvme() + Arguments{"--gradient-accumulation-steps", "2"};
  for (const char* stage : {"0", "1", "2"}) {
    SCOPED_TRACE(stage);
    const Arguments flags = common + Arguments{"--zero-stage", stage};
    const std::size_t small = least_host_memory(training, flags) * 5 / 4;
    ASSERT_GT(small, 0U);
    const Arguments less = limits(small, 1);
    const Arguments more = limits(4 * small, 2);
    const std::string equal = std::string("equal") + stage;
    const Outcome both = train_pair(training, equal, flags, {less, less});
    ASSERT_EQ(both.code, 0) << both;
    EXPECT_EQ(both.output.find("own budgets"), std::string::npos) << both;
    EXPECT_FALSE(run_file(training, equal).contains("ranks"));
    for (const std::size_t larger : {0U, 1U}) {
      const std::string run = fmt::format("larger{}_{}", larger, stage);
      std::array<Arguments, 2> own = {less, less};
      own.at(larger) = more;
      const Outcome outcome = train_pair(training, run, flags, own);
      ASSERT_EQ(outcome.code, 0) << outcome;
      training.expect_same(run, equal, "final");
      EXPECT_NE(outcome.output.find("\nthe ranks plan for their own budgets"), std::string::npos)
          << outcome;
      const nlohmann::json ranks = run_file(training, run).at("ranks");
      ASSERT_EQ(ranks.size(), 2U);
      const auto written = [&ranks](std::size_t rank) {
        return ranks.at(rank).at("nvme_write_bytes").get<double>();
      };
      EXPECT_GT(written(1 - larger), 2 * written(larger));
      EXPECT_EQ(ranks.at(larger).at("threads"), 2);
      const double moved = sum_of(training.rows(run), "nvme_write_bytes");
      EXPECT_GT(moved, 0);
      EXPECT_LT(moved, sum_of(training.rows(equal), "nvme_write_bytes"));
    }
  }
  EXPECT_TRUE(training.nvme_is_empty());
}

// A checkpoint does not depend on where ranks have their state.
TEST(MpiRanks, ResumeWithOtherUnequalBudgets) {
  const TinyTraining training(6, 64);
  const Arguments common = kSteps + training.nvme() + Arguments{"--zero-stage", "2"};
  const std::size_t small = least_host_memory(training, common) * 5 / 4;
  const Arguments less = limits(small, 1);
  const Arguments more = limits(4 * small, 1);
  const Outcome whole = train_pair(training, "whole", common, {more, more});
  ASSERT_EQ(whole.code, 0) << whole;
  const Outcome begun =
      train_pair(training, "run", common + Arguments{"--stop-after-step", "2"}, {less, more});
  ASSERT_EQ(begun.code, 0) << begun;
  const Outcome further =
      train_pair(training, "run", common + Arguments{"--resume", "auto", "--stop-after-step", "4"},
                 {more, less});
  ASSERT_EQ(further.code, 0) << further;
  training.train("run", common + less + Arguments{"--resume", "auto", "--local-ranks", "2"});
  training.expect_same("run", "whole", "final");
}

TEST(MpiRanks, WithUnequalBudgetsTakeTheLeastAtStageThree) {
  const TinyTraining training(6, 64);
  const Arguments common = kSteps + training.nvme() + Arguments{"--zero-stage", "3"};
  const std::size_t small = least_host_memory(training, common) * 5 / 4;
  const Arguments less = limits(small, 1);
  const Outcome equal = train_pair(training, "equal", common, {less, less});
  ASSERT_EQ(equal.code, 0) << equal;
  const Outcome outcome = train_pair(training, "run", common, {limits(4 * small, 1), less});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE(outcome.output.find("all plan for the least of them, because ranks of ZeRO stage 3"),
            std::string::npos)
      << outcome;
  training.expect_same("run", "equal", "final");
  EXPECT_EQ(sum_of(training.rows("run"), "nvme_write_bytes"),
            sum_of(training.rows("equal"), "nvme_write_bytes"));
}

// The stages of a pipeline plan for their own budgets at any stage of ZeRO.
TEST(MpiRanks, OfPipelineStagesMayHaveUnequalBudgets) {
  const TinyTraining training(6, 64);
  const Arguments common =
      kSteps + training.nvme() + Arguments{"--pipeline-parallel", "2", "--zero-stage", "3"};
  const std::size_t small = least_host_memory(training, common) * 5 / 4;
  const Arguments less = limits(small, 1);
  const Outcome equal = train_pair(training, "equal", common, {less, less});
  ASSERT_EQ(equal.code, 0) << equal;
  const Outcome outcome = train_pair(training, "run", common, {less, limits(4 * small, 1)});
  ASSERT_EQ(outcome.code, 0) << outcome;
  training.expect_same("run", "equal", "final");
  const nlohmann::json ranks = run_file(training, "run").at("ranks");
  EXPECT_GT(ranks.at(0).at("nvme_write_bytes"), 0);
  EXPECT_EQ(ranks.at(1).at("nvme_write_bytes"), 0);
}

// Each of them is less than this host has, and they are more together.
TEST(MpiRanks, WithBudgetsBeyondTheHostAreRefused) {
  const TinyTraining training;
  const std::size_t half = machine_memory() / 2;
  const Outcome outcome =
      train_pair(training, "run", kSteps, {limits(half + half / 2, 1), limits(half + half / 4, 1)});
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_NE(outcome.errors.find("the budgets of the 2 ranks on this host"), std::string::npos)
      << outcome;
}

// This happens if each host has a copy of its own and one copy is of another model.
TEST(MpiRanks, ThatFindDifferentWeightsDoNotTrain) {
  const TinyTraining training;
  for (const char* seed : {"1", "2"}) {
    training.train(seed, {"--max-steps", "1", "--seed", seed});
  }
  const auto from = [&training](const char* seed) {
    return training.command("run", kSteps + Arguments{"--init", "weights", "--model",
                                                      training.path(std::string(seed) + "/final")});
  };
  const Arguments zero = {"--zero-stage", "3"};
  const Arguments second = Arguments{":", "-n", "1", program_path()} + from("2") + zero;
  const Outcome outcome = ProgramRun(from("1") + zero + second, {}, mpirun(1)).wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("different weights"), std::string::npos) << outcome;
  EXPECT_FALSE(training.directory().has("run"));
}

// Not every byte of the files is compared. The damage is between the places of the largest tensor
// that are compared.
TEST(MpiRanks, ThatHaveReadDifferentParametersDoNotTrain) {
  const TinyTraining training(1, 512);
  training.train("first", {"--max-steps", "1"});
  const std::string good = training.path("first/final");
  const std::string damaged = training.path("damaged");
  std::filesystem::copy(good, damaged);
  std::string file = training.directory().read("damaged/model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  const auto& embedding = header.at("model.embed_tokens.weight").at("data_offsets");
  ASSERT_LT(200'000U, embedding[1].get<std::size_t>() - embedding[0].get<std::size_t>());
  file[8 + header_bytes + embedding[0].get<std::size_t>() + 70'000] ^= 1;
  training.directory().write("damaged/model.safetensors", file);
  const auto from = [&training](const std::string& model) {
    return training.command(
        "run", kSteps + Arguments{"--init", "weights", "--model", model, "--zero-stage", "1"});
  };
  const Arguments second = Arguments{":", "-n", "1", program_path()} + from(damaged);
  const Outcome outcome = ProgramRun(from(good) + second, {}, mpirun(1)).wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("have read different parameters"), std::string::npos) << outcome;
  EXPECT_FALSE(training.directory().has("run"));
}

// One rank prints the document, which is about all ranks.
TEST(MpiRanks, SayInADryRunWhatThreadsSay) {
  const TinyTraining training(4);
  const Arguments mesh = kSteps + Arguments{"--pipeline-parallel", "2", "--threads", "1"};
  for (const char* host_memory : {"64MiB", "8KiB"}) {
    const Arguments dry_run = mesh + Arguments{"--dry-run", "--json", "--host-memory", host_memory};
    const Outcome threads =
        run_program(training.command("run", dry_run + Arguments{"--local-ranks", "4"}));
    const Outcome processes = train_job(training, 4, "run", dry_run);
    EXPECT_EQ(processes.code, threads.code) << processes;
    const auto results = [](const Outcome& outcome) {
      const auto document = nlohmann::json::parse(outcome.output, nullptr, false);
      EXPECT_TRUE(document.is_object()) << outcome;
      nlohmann::json kept = nlohmann::json::array();
      for (const auto& result : document.value("results", kept)) {
        if (result["name"] != "prediction") kept.push_back(result);  // of a measured speed
      }
      return kept;
    };
    EXPECT_EQ(results(processes), results(threads));
  }
  EXPECT_FALSE(training.directory().has("run"));
}

TEST(MpiRanks, AWrongFlagEndsTheJobWithAnError) {
  const TinyTraining training;
  const Outcome outcome =
      train_job(training, 2, "run", kSteps + Arguments{"--pipeline-parallel", "3"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("3 pipeline stages"), std::string::npos) << outcome;
}

// Token 3000 has an id that the model does not have, and one of the ranks has to train on it. A
// scheduler that restarts jobs that were saved on a signal (75) would restart this one for ever.
TEST(MpiRanks, BadDataOfOneEndsAllOfThem) {
  const TinyTraining training;
  std::string tokens(2 * 6000, '\0');
  tokens.replace(2 * 3000, 2, "\x2c\x01");
  const Arguments data = {"--data",
                          training.directory().write("tokens.u16", tokens),
                          "--data-format",
                          "raw-u16",
                          "--sequence-length",
                          "16"};
  const Outcome outcome = train_job(training, 2, "run", data + Arguments{"--max-steps", "1000"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  for (const char* said : {"rank 0: ", "rank 1: ", "token 3000 has id 300"}) {
    EXPECT_NE(outcome.errors.find(said), std::string::npos) << said << '\n' << outcome;
  }
  EXPECT_NE(outcome.output.find("\nsaved "), std::string::npos) << outcome;
}

// mpirun makes a terminal for its ranks even if it writes to a file itself.
TEST(MpiRanks, DrawNoProgressBarInAFile) {
  const TinyTraining training;
  for (const int ranks : {1, 2}) {
    const Outcome outcome = train_job(training, ranks, std::to_string(ranks), kSteps);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_EQ(outcome.output.find('\r'), std::string::npos) << outcome;
  }
}

// A rank dies in the middle of a step. The others do not wait for it, nothing is saved, and nothing
// is left on the drive. Fewer ranks go on from the last checkpoint.
TEST(MpiRanks, AKilledRankEndsTheJobAndFewerGoOn) {
  const TinyTraining training(4);
  const Arguments common =
      training.nvme() +
      Arguments{"--place-optimizer", "nvme", "--precision", "fp32", "--progress", "off"};
  ProgramRun run(training.command("run", common + Arguments{"--max-steps", "1000000",
                                                            "--checkpoint-every", "10"}),
                 {}, mpirun(4));
  ASSERT_TRUE(run.wait_for("\nsaved ")) << run.wait();
  ASSERT_TRUE(run.kill_a_descendant("--run-dir"));
  const Outcome outcome = run.wait();
  EXPECT_NE(outcome.code, 0) << outcome;
  EXPECT_FALSE(training.directory().has("run/final"));
  EXPECT_TRUE(training.nvme_is_empty());

  // There are as many samples on half as many ranks.
  const Arguments resume = {"--resume", "auto", "--gradient-accumulation-steps", "4"};
  const int saved = training.last_committed("run");
  const Outcome resumed = train_job(
      training, 2, "run",
      common + resume +
          Arguments{"--max-steps", "1000000", "--stop-after-step", std::to_string(saved + 3)});
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_NE(resumed.output.find("resumed after step "), std::string::npos) << resumed;
  EXPECT_EQ(training.rows("run").back().step, saved + 3);
  EXPECT_TRUE(training.nvme_is_empty());
}

// Other launchers set these variables for each of their processes, and so does Open MPI without its
// mpirun. Each process would find itself alone, and would train alone.
TEST(MpiRanks, ThatMpiDoesNotFindDoNotTrainAlone) {
  const TinyTraining training;
  const auto environments = std::to_array<Arguments>(
      {{"env", "PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"},
       {"env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
       {"env", "PMI_RANK=0", "PMI_SIZE=2"}});
  for (const Arguments& environment : environments) {
    const Outcome outcome = ProgramRun(training.command("run", kSteps), {}, environment).wait();
    EXPECT_EQ(outcome.code, 4) << outcome;
    EXPECT_NE(outcome.errors.find(environment[2]), std::string::npos) << outcome;
    EXPECT_NE(outcome.errors.find("unset"), std::string::npos) << outcome;
    EXPECT_FALSE(training.directory().has("run"));
  }
}

// There must be one document on standard output, whatever starts the program.
TEST(MpiRanks, ABenchmarkOfOneProcessIsRefused) {
  const Outcome outcome = ProgramRun({"bench", "copy", "--small", "--json"}, {}, mpirun(2)).wait();
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("bench copy: "), std::string::npos) << outcome;
}

}  // namespace
}  // namespace terrace
