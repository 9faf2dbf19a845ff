#include <gtest/gtest.h>

#include "tests/e2e/tiny_training.h"

// Tensor-parallel ranks as threads, by the program itself.
namespace terrace {
namespace {

const Arguments kTensorSteps = {"--max-steps", "8"};

Arguments tensor(int ranks, int tensor_ranks) {
  return {"--local-ranks", std::to_string(ranks), "--tensor-parallel",
          std::to_string(tensor_ranks)};
}

void expect_near_to_the_end(const std::vector<MetricsRow>& rows,
                            const std::vector<MetricsRow>& expected, double relative) {
  expect_near(rows, expected, relative);
  EXPECT_NEAR(rows.back().columns.at("validation_loss"),
              expected.back().columns.at("validation_loss"), 1e-3);
}

TEST(TensorRanksRun, TrainAsOneRankDoes) {
  for (const bool gpt2 : {false, true}) {
    const TinyTraining training = gpt2 ? TinyTraining(gpt2_config()) : TinyTraining();
    const Arguments fp32 = kTensorSteps + Arguments{"--precision", "fp32"};
    training.train("one", fp32);
    training.train("shared", fp32 + tensor(2, 2));
    training.train("all_rows", fp32 + tensor(2, 2) + Arguments{"--sequence-parallel", "off"});
    for (const char* run : {"shared", "all_rows"}) {
      expect_near_to_the_end(training.rows(run), training.rows("one"), 1e-3);
      EXPECT_GT(sum_of(training.rows(run), "collective_bytes"), 0);
    }
  }
}

TEST(TensorRanksRun, TiersAndSwitchesDoNotChangeBits) {
  const TinyTraining training;
  const Arguments mesh = kTensorSteps + tensor(4, 2);
  training.train("plain", mesh + Arguments{"--zero-stage", "0"});
  training.train("away", mesh + training.nvme() +
                             Arguments{"--zero-stage", "3", "--device-memory", "16MiB",
                                       "--place-parameters", "nvme", "--place-gradients", "nvme",
                                       "--place-optimizer", "nvme", "--recompute", "full"});
  training.train("layers",
                 mesh + Arguments{"--micro-batch-order", "layer-major", "--zero-stage", "2"});
  for (const char* run : {"away", "layers"}) training.expect_same(run, "plain", "final");
  EXPECT_TRUE(training.nvme_is_empty());
}

// Trains with two data, two tensor and two pipeline ranks and the optimizer on the drive, and then
// on other meshes.
TEST(TensorRanksRun, ResumeOnOtherMeshes) {
  const TinyTraining training;
  const auto with = [](const Arguments& mesh, int micro_batches) {
    return kTensorSteps + mesh +
           Arguments{"--precision", "fp32", "--gradient-accumulation-steps",
                     std::to_string(micro_batches)};
  };
  const Arguments eight = with(tensor(8, 2), 2) + training.nvme() +
                          Arguments{"--pipeline-parallel", "2",    "--zero-stage", "3",
                                    "--place-optimizer",   "nvme", "--recompute",  "full"};
  const Arguments resume = {"--resume", "auto"};
  training.train("eight", eight);
  training.train("run", eight + Arguments{"--stop-after-step", "2"});
  training.train("run",
                 with({"--local-ranks", "4"}, 1) + resume + Arguments{"--stop-after-step", "4"});
  training.train("run", with({}, 4) + resume + Arguments{"--stop-after-step", "6"});
  training.train("run", with(tensor(2, 2), 4) + resume);
  expect_near_to_the_end(training.rows("run"), training.rows("eight"), 1e-3);

  // A run that is stopped and resumed on the same ranks has the same bits, also in its state.
  training.train("again", eight + Arguments{"--stop-after-step", "3"});
  training.train("again", eight + resume);
  training.expect_same("again", "eight", "final");
}

// The steps' checkpoints have the same names and shapes as one rank's.
TEST(TensorRanksRun, CheckpointsAreThoseOfOneRank) {
  const TinyTraining training(gpt2_config());
  const Arguments stop = kTensorSteps + Arguments{"--stop-after-step", "1"};
  training.train("one", stop);
  training.train("shared", stop + tensor(2, 2));
  const auto of_one = training.files("one", "checkpoint-1");
  const auto of_two = training.files("shared", "checkpoint-1");
  ASSERT_EQ(of_one.size(), of_two.size());
  for (const auto& [name, content] : of_one) {
    if (!name.ends_with(".safetensors")) continue;
    ASSERT_TRUE(of_two.contains(name)) << name;
    EXPECT_EQ(of_two.at(name).size(), content.size()) << name;
    EXPECT_EQ(of_two.at(name).substr(0, 256), content.substr(0, 256)) << name;  // the header
  }
}

}  // namespace
}  // namespace terrace
