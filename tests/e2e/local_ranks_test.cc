#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

const Arguments kSteps = {"--max-steps", "8"};

Arguments ranks(int count, int stage) {
  return {"--local-ranks", std::to_string(count), "--zero-stage", std::to_string(stage)};
}

TEST(LocalRanks, StagesAndTiersDoNotChangeBits) {
  const TinyTraining training;
  training.train("zero", kSteps + ranks(2, 0));
  training.train("one",
                 kSteps + ranks(2, 1) + training.nvme() + Arguments{"--place-optimizer", "nvme"});
  training.train("three", kSteps + ranks(2, 3) + training.nvme() +
                              Arguments{"--device-memory", "16MiB", "--place-parameters", "nvme",
                                        "--place-gradients", "nvme", "--place-optimizer", "nvme",
                                        "--recompute", "full"});
  for (const char* run : {"one", "three"}) training.expect_same(run, "zero", "final");
  EXPECT_TRUE(training.nvme_is_empty());
  for (const char* run : {"zero", "one", "three"}) {
    EXPECT_GT(sum_of(training.rows(run), "collective_bytes"), 0);
  }
}

// Islands of ranks change no bit either, and other ranks take up their checkpoints.
TEST(LocalRanks, IslandsDoNotChangeBits) {
  const TinyTraining training;
  const Arguments all = kSteps + ranks(4, 3);
  training.train("all", all);
  const Arguments stop = {"--stop-after-step", "4"};
  for (const char* partition : {"hpz", "hsdp"}) {
    const Arguments islands = all + Arguments{"--zero-partition", partition, "--island-ranks", "2"};
    const std::string run = partition;
    training.train(run, islands);
    training.expect_same(run, "all", "final");
    const std::string on_drive = run + "-on-drive";
    training.train(on_drive, islands + stop + training.nvme() +
                                 Arguments{"--place-parameters", "nvme", "--place-gradients",
                                           "nvme", "--place-optimizer", "nvme"});
    training.train(on_drive, all + Arguments{"--resume", "auto"});
    training.expect_same(on_drive, "all", "final");
  }
  // One island is all ranks.
  training.train("one", all + Arguments{"--zero-partition", "hpz"});
  training.expect_same("one", "all", "final");
}

// Codes change what is computed; tiers, stages and threads still change nothing.
TEST(LocalRanks, CodesHaveTheSameBitsInAllTiersAndStages) {
  const TinyTraining training;
  const Arguments coded = kSteps + Arguments{"--gradient-wire-dtype", "int4"};
  training.train("plain", kSteps + ranks(2, 1));
  training.train("one", coded + ranks(2, 1));
  const auto all_bytes = [&](const char* run) {
    return sum_of(training.rows(run), "collective_bytes");
  };
  EXPECT_LT(all_bytes("one"), 0.6 * all_bytes("plain"));
  training.train("three", coded + ranks(2, 3) + training.nvme() +
                              Arguments{"--place-gradient-errors", "nvme", "--place-gradients",
                                        "nvme", "--place-optimizer", "nvme", "--threads", "1"});
  training.expect_same("three", "one", "final");
  EXPECT_TRUE(training.nvme_is_empty());
  const Arguments both = coded + ranks(2, 3) + Arguments{"--parameter-wire-dtype", "int8"};
  training.train("both", both);
  training.train("both-on-drive",
                 both + training.nvme() +
                     Arguments{"--place-parameters", "nvme", "--place-gradient-errors", "nvme"});
  training.expect_same("both-on-drive", "both", "final");
}

// The samples of a step are the same, but divided differently, so sums are taken in another order.
// After eight steps, fp32 products of such a model are within a few hundred roundings of each
// other.
TEST(LocalRanks, AsManySamplesOnFewerRanksGiveNearlyTheSame) {
  const TinyTraining training;
  const Arguments fp32 = kSteps + Arguments{"--precision", "fp32"};
  training.train("one", fp32 + Arguments{"--gradient-accumulation-steps", "6"});
  training.train("two", fp32 + ranks(2, 2) + Arguments{"--gradient-accumulation-steps", "3"});
  training.train("three", fp32 + ranks(3, 3) + Arguments{"--gradient-accumulation-steps", "2"});
  expect_near(training.rows("two"), training.rows("one"), 1e-4);
  expect_near(training.rows("three"), training.rows("one"), 1e-4);
}

TEST(LocalRanks, ResumeOnOtherRanksAndStages) {
  const TinyTraining training;
  const auto with = [](int count, int stage, int micro_batches) {
    return Arguments{"--precision", "fp32", "--gradient-accumulation-steps",
                     std::to_string(micro_batches)} +
           kSteps + ranks(count, stage);
  };
  training.train("alone", with(1, 0, 6));
  const Arguments stop = {"--stop-after-step", "4"};
  const Arguments resume = {"--resume", "auto"};
  training.train("run",
                 with(2, 3, 3) + stop + training.nvme() + Arguments{"--place-optimizer", "nvme"});
  training.train("run", with(3, 1, 2) + resume + Arguments{"--stop-after-step", "6"});
  training.train("run", with(1, 0, 6) + resume);
  expect_near(training.rows("run"), training.rows("alone"), 1e-4);

  // A run that is stopped and resumed on the same ranks has the same bits, also in its state.
  training.train("two", with(2, 2, 3));
  training.train("again", with(2, 3, 3) + stop);
  training.train("again", with(2, 1, 3) + resume);
  training.expect_same("again", "two", "final");
}

// Two data-parallel ranks of two stages each, with everything on the drive that can be there.
TEST(LocalRanks, PipelinesHaveTheBitsOfOneStage) {
  const TinyTraining training(4);
  const Arguments more = kSteps + Arguments{"--gradient-accumulation-steps", "3"};
  training.train("flat", more + ranks(2, 1));
  training.train("pipeline", more + ranks(4, 3) + training.nvme() +
                                 Arguments{"--pipeline-parallel", "2", "--place-parameters", "nvme",
                                           "--place-gradients", "nvme", "--place-optimizer", "nvme",
                                           "--recompute", "full"});
  training.expect_same("pipeline", "flat", "final");
  EXPECT_TRUE(training.nvme_is_empty());

  // A run of other stages goes on with the state that these stages have saved.
  const Arguments stages = more + Arguments{"--pipeline-schedule", "gpipe"};
  training.train("again", stages + ranks(2, 0) +
                              Arguments{"--pipeline-parallel", "2", "--stop-after-step", "4"});
  training.train("again",
                 stages + ranks(4, 0) + Arguments{"--pipeline-parallel", "4", "--resume", "auto"});
  training.train("alone", more);
  training.expect_same("again", "alone", "final");
}

// The division of layers between stages changes no bit, and a run may go on with another division.
TEST(LocalRanks, StagesOfUnequalSpeedHaveTheBitsOfEqualOnes) {
  const TinyTraining training(4);
  const Arguments stages =
      kSteps +
      Arguments{
          "--local-ranks", "2", "--pipeline-parallel", "2", "--gradient-accumulation-steps", "4"};
  const Arguments slow_first = stages + Arguments{"--stage-speeds", "0.3", "1"};
  const Arguments slow_last = stages + Arguments{"--stage-speeds", "1", "0.3"};
  training.train("equal", stages);
  training.train("slow-first", slow_first);
  training.expect_same("slow-first", "equal", "final");
  training.train("other", slow_first + Arguments{"--stop-after-step", "4"});
  training.train("other", slow_last + Arguments{"--resume", "auto"});
  training.expect_same("other", "equal", "final");
  const auto units_line = [&](const Arguments& more) {
    ProgramRun run(training.command("dry", more + Arguments{"--dry-run"}));
    const std::string text = run.wait().output;
    const std::size_t begin = text.find("2 pipeline stages, from units");
    return begin == std::string::npos ? text : text.substr(begin, text.find(';', begin) - begin);
  };
  EXPECT_EQ(units_line(slow_first), "2 pipeline stages, from units 0, 2 on");
  EXPECT_EQ(units_line(stages), "2 pipeline stages, from units 0, 3 on");
  EXPECT_EQ(units_line(slow_last), "2 pipeline stages, from units 0, 5 on");
}

// After eight steps the run goes on with another division of layers, in one process. Then its
// config.toml has the speeds, and a resumed run measures nothing.
TEST(LocalRanks, StagesThatAreMeasuredHaveTheBitsOfEqualOnes) {
  const TinyTraining training(4);
  const Arguments stages = {
      "--local-ranks", "2", "--gradient-accumulation-steps", "4", "--pipeline-parallel", "2",
      "--max-steps",   "14"};
  const Arguments measured = stages + Arguments{"--stage-speeds", "auto"};
  const auto told = [](const Outcome& outcome) {
    return outcome.output.find("measured: the pipeline stages") != std::string::npos;
  };
  const auto config = [&training](const std::string& run) {
    std::ifstream file(training.path(run + "/config.toml"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  training.train("equal", stages);
  EXPECT_TRUE(told(training.train("whole", measured)));
  training.expect_same("whole", "equal", "final");
  EXPECT_EQ(training.rows("whole").size(), 14U);
  EXPECT_NE(config("whole").find("\nstage_speeds = ["), std::string::npos) << config("whole");
  EXPECT_EQ(config("whole").find("\nstop_after_step"), std::string::npos) << config("whole");

  EXPECT_FALSE(told(training.train("parts", measured + Arguments{"--stop-after-step", "2"})));
  EXPECT_NE(config("parts").find("\nstage_speeds = \"auto\""), std::string::npos);
  const Arguments resume = {"--resume", "auto"};
  EXPECT_TRUE(
      told(training.train("parts", measured + resume + Arguments{"--stop-after-step", "12"})));
  EXPECT_EQ(training.rows("parts").size(), 12U);
  EXPECT_FALSE(told(training.train("parts", measured + resume)));
  training.expect_same("parts", "equal", "final");
}

// A run with two pieces in each of two stages is saved in the middle. It goes on as four
// data-parallel ranks and as one. It has the bits of two ranks up to there, and nearly the same
// values after that.
TEST(LocalRanks, InterleavedStagesHaveTheBitsOfOneAndResumeOnOtherRanks) {
  const TinyTraining training(4);
  const auto with = [](int micro_batches) {
    return kSteps + Arguments{"--precision", "fp32", "--gradient-accumulation-steps",
                              std::to_string(micro_batches)};
  };
  const Arguments interleaved =
      with(4) + ranks(4, 3) + training.nvme() +
      Arguments{"--pipeline-parallel", "2",    "--pipeline-schedule", "interleaved",
                "--place-optimizer",   "nvme", "--recompute",         "full",
                "--checkpoint-every",  "4"};
  training.train("flat", with(4) + ranks(2, 1));
  training.train("run", interleaved);
  training.expect_same("run", "flat", "final");
  EXPECT_TRUE(training.nvme_is_empty());
  const Arguments resume = {"--resume", training.path("run/checkpoint-4")};
  training.train("four", with(2) + ranks(4, 1) + resume);
  training.train("alone", with(8) + resume);
  for (const char* run : {"four", "alone"}) {
    std::vector<MetricsRow> expected = training.rows("flat");
    expected.erase(expected.begin(), expected.begin() + 4);
    expect_near(training.rows(run), expected, 1e-4);
  }
}

TEST(LocalRanks, MoreMemoryThanTheHostHasIs3) {
  const TinyTraining training;
  ProgramRun run(
      training.command("run", kSteps + ranks(64, 1) + Arguments{"--host-memory", "512GiB"}));
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_NE(outcome.errors.find("for each of 64 ranks"), std::string::npos) << outcome;
}

// The second stage has the head, so it needs the most memory. The peak in the rows is enough for
// it.
TEST(LocalRanks, RowsHaveThePeakOfTheRankWithTheLargest) {
  const TinyTraining training;
  const Arguments stages = kSteps + Arguments{"--local-ranks", "2", "--pipeline-parallel", "2"};
  training.train("run", stages);
  const auto peak =
      static_cast<std::int64_t>(training.rows("run").front().columns.at("host_peak_bytes"));
  training.train("enough", stages + Arguments{"--host-memory", std::to_string(peak)});
  const Outcome outcome = run_program(training.command(
      "less", stages + Arguments{"--host-memory", std::to_string(peak - peak / 8)}));
  EXPECT_EQ(outcome.code, 3) << outcome;
}

// Updates run under the step after theirs. The bytes that they move count for their own step.
TEST(LocalRanks, ARowHasTheBytesOfItsStepsOps) {
  const TinyTraining training;
  training.train("run", kSteps + ranks(2, 1) + training.nvme() +
                            Arguments{"--place-optimizer", "nvme", "--place-gradients", "nvme"});
  const std::vector<MetricsRow> rows = training.rows("run");
  ASSERT_GT(rows.size(), 2U);
  for (const char* column : {"nvme_read_bytes", "nvme_write_bytes", "collective_bytes"}) {
    EXPECT_GT(rows.front().columns.at(column), 0) << column;
    for (const MetricsRow& row : rows) {
      EXPECT_EQ(row.columns.at(column), rows.front().columns.at(column)) << column << ' ' << row;
    }
  }
}

TEST(LocalRanks, AllStopOnASignal) {
  const TinyTraining training;
  const Arguments common = {"--max-steps", "1000000"};
  ProgramRun run(training.command("run", common + ranks(3, 3)));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  const std::string saved = std::to_string(training.rows("run").back().step);
  EXPECT_TRUE(training.directory().has("run/checkpoint-" + saved + "/manifest.json"));
}

// The drive of every rank fails. The message names the drive, and does not say that ranks were
// ended.
TEST(LocalRanks, WhatFailsOneEndsAllWithItsCause) {
  const TinyTraining training(3, 96);
  ProgramRun run(training.command("run", Arguments{"--max-steps", "1000000"} + ranks(2, 3) +
                                             training.nvme() +
                                             Arguments{"--place-optimizer", "nvme"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  run.limit_file_size(256 * 4096);  // the rows of the metrics are far from that
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_NE(outcome.errors.find(training.path("nvme")), std::string::npos) << outcome;
  EXPECT_TRUE(training.nvme_is_empty());
}

// The rank that finds the damage may be between steps. There it hears that calls were ended, but it
// has ended them itself.
TEST(LocalRanks, WhatIsWrongOnTheDriveOfOneIsTold) {
  const TinyTraining training(3, 96);
  ProgramRun run(training.command("run", Arguments{"--max-steps", "1000000"} + ranks(2, 1) +
                                             training.nvme() +
                                             Arguments{"--place-optimizer", "nvme"}));
  ASSERT_TRUE(run.wait_for("\nstep ", 3)) << run.wait();
  while (!run.has_ended()) {  // data that is written over is whole again
    for (const std::string& drive : run.open_files("slots.bin")) {
      std::error_code gone;
      const std::uintmax_t size = std::filesystem::file_size(drive, gone);
      if (gone) continue;
      std::fstream(drive, std::ios::binary | std::ios::in | std::ios::out)
          << std::string(size, 'Z');
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_NE(outcome.errors.find("slots.bin"), std::string::npos) << outcome;
}

// While the last evaluation goes on, which does not need the drives, they lose the state that
// final/ is made of. No rank can save it in another form, and no rank waits for others to do so.
TEST(LocalRanks, StateThatCannotBeReadForTheResultEndsAll) {
  const TinyTraining training;
  const std::string held =
      training.directory().write("held.txt", generated_text(std::size_t{1} << 20, 3));
  ProgramRun run(
      training.command("run", Arguments{"--max-steps", "3", "--validation-data", held,
                                        "--eval-samples", "0", "--place-optimizer", "nvme"} +
                                  ranks(2, 1) + training.nvme()));
  ASSERT_TRUE(run.wait_for("\nstep 2/3", 1)) << run.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // for step 3; its row comes later
  for (const std::string& drive : run.open_files("slots.bin")) {
    std::filesystem::resize_file(drive, 0);
  }
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_NE(outcome.errors.find("slots.bin"), std::string::npos) << outcome;
  EXPECT_EQ(training.rows("run").size(), 3U) << "it failed in a step";
  EXPECT_FALSE(training.directory().has("run/final/config.json"));
}

}  // namespace
}  // namespace terrace
