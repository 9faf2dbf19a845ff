#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/e2e/tiny_training.h"

// The gradient noise scale in metrics.jsonl, and the numbers of micro-batches that follow from it.
namespace terrace {
namespace {

using testing::HasSubstr;

Arguments states_on_drive(const TinyTraining& training) {
  return training.nvme() + Arguments{"--device-memory",   "16MiB", "--place-parameters", "nvme",
                                     "--place-gradients", "nvme",  "--place-optimizer",  "nvme"};
}

// Expects the rows of a run to have the same values in a column, also where it is missing.
void expect_same_column(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& others,
                        const std::string& column) {
  ASSERT_EQ(rows.size(), others.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto found = rows[i].columns.find(column);
    const auto other = others[i].columns.find(column);
    ASSERT_EQ(found == rows[i].columns.end(), other == others[i].columns.end()) << column;
    if (found == rows[i].columns.end()) continue;
    EXPECT_EQ(found->second, other->second) << column << " of " << rows[i];
  }
}

void expect_same_noise(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& others) {
  for (const char* column : {"gradient_noise_scale", "gradient_squared_norm", "gradient_variance",
                             "micro_batches", "tokens"}) {
    expect_same_column(rows, others, column);
  }
}

// Trains nano without changing its parameters, so that all steps are of the same model.
std::vector<MetricsRow> steps_of_nano(const TinyTraining& training, const std::string& run,
                                      int micro_batches, int steps, const Arguments& more = {}) {
  training.train(
      run, Arguments{"--model", "nano", "--sequence-length", "32", "--precision", "fp32",
                     "--learning-rate", "0", "--validation-fraction", "0",
                     "--gradient-accumulation-steps", std::to_string(micro_batches), "--max-steps",
                     std::to_string(steps), "--log-every", "1000", "--host-memory", "256MiB"} +
               more);
  return training.rows(run);
}

double mean_of_squares(const std::vector<MetricsRow>& rows) {
  double sum = 0;
  for (const MetricsRow& row : rows)
    sum += row.columns.at("grad_norm") * row.columns.at("grad_norm");
  return sum / static_cast<double>(rows.size());
}

// Truth comes from the gradients of single samples and of all of them together. The tool sees the
// same samples in steps of 16.
TEST(GradientNoise, IsWithinAFifthOfThatOfSingleSamples) {
  constexpr int kSamples = 1024;
  constexpr int kPerStep = 16;
  const TinyTraining training;
  const double of_one = mean_of_squares(steps_of_nano(training, "single", 1, kSamples));
  const double of_all = mean_of_squares(steps_of_nano(training, "whole", kSamples, 1));
  // |gradient of n samples|^2 has the mean |G|^2 + tr(S) / n.
  const double variance = (of_one - of_all) * kSamples / (kSamples - 1);
  const double squared_norm = of_all - variance / kSamples;
  const std::vector<MetricsRow> rows = steps_of_nano(
      training, "measured", kPerStep, kSamples / kPerStep, {"--gradient-noise-scale"});
  const auto steps = static_cast<double>(rows.size());
  const double measured = rows.back().columns.at("gradient_noise_scale");
  const double truth = variance / squared_norm;
  RecordProperty("truth", fmt::format("{:.3f}", truth));
  RecordProperty("measured", fmt::format("{:.3f}", measured));
  EXPECT_NEAR(measured, truth, 0.2 * truth);
  EXPECT_NEAR(sum_of(rows, "gradient_variance") / steps, variance, 0.2 * variance);
  EXPECT_NEAR(sum_of(rows, "gradient_squared_norm") / steps, squared_norm, 0.2 * squared_norm);
}

TEST(GradientNoise, ChangesNothingElseAndIsTheSameOnEveryTier) {
  const TinyTraining training;
  const Arguments steps = {"--max-steps", "9", "--gradient-accumulation-steps", "3"};
  const Arguments measured = steps + Arguments{"--gradient-noise-scale"};
  training.train("without", steps);
  training.train("plain", measured);
  training.train("drive", measured + states_on_drive(training));
  training.train("layers", measured + states_on_drive(training) +
                               Arguments{"--micro-batch-order", "layer-major"});
  training.train("stopped", measured + Arguments{"--stop-after-step", "4"});
  training.train("stopped", measured + states_on_drive(training) + Arguments{"--resume", "auto"});
  training.expect_same("plain", "without", "final");
  for (const char* run : {"drive", "layers", "stopped"}) {
    SCOPED_TRACE(run);
    training.expect_same(run, "plain", "final");
    expect_same_noise(training.rows(run), training.rows("plain"));
  }
  EXPECT_EQ(training.rows("plain").back().columns.count("gradient_variance"), 1U);
  EXPECT_EQ(training.rows("without").back().columns.count("gradient_variance"), 0U);
}

TEST(GradientNoise, OfRanksIsTheSameInEveryStage) {
  const TinyTraining training;
  const Arguments ranks = {"--local-ranks",
                           "2",
                           "--max-steps",
                           "6",
                           "--gradient-noise-scale",
                           "--gradient-accumulation-steps",
                           "1"};
  training.train("plain", ranks + Arguments{"--zero-stage", "0"});
  training.train("divided", ranks + Arguments{"--zero-stage", "3"} + states_on_drive(training));
  training.expect_same("divided", "plain", "final");
  expect_same_noise(training.rows("divided"), training.rows("plain"));
}

TEST(GradientNoise, WithoutASecondSizeOfBatchIsRefused) {
  const TinyTraining training;
  const auto expect = [&](const Arguments& more, const char* part) {
    const Outcome outcome =
        run_program(training.command("refused", more + Arguments{"--max-steps", "9"}));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  expect({"--gradient-noise-scale", "--gradient-accumulation-steps", "1"},
         "set --gradient-accumulation-steps to 2 or more");
  expect({"--gradient-noise-scale", "--local-ranks", "2", "--tensor-parallel", "2"},
         "--gradient-noise-scale: tensor-parallel ranks");
  expect({"--gradient-noise-scale", "--local-ranks", "2", "--pipeline-parallel", "2"},
         "such as a tied embedding");
  expect({"--accumulation-schedule", "auto", "--gradient-accumulation-steps", "1"},
         "give the largest number as --gradient-accumulation-steps");
}

// Samples of two tokens are noisy enough for the batch to grow.
Arguments automatic(int steps) {
  return {"--accumulation-schedule",
          "auto",
          "--gradient-accumulation-steps",
          "8",
          "--sequence-length",
          "2",
          "--max-steps",
          std::to_string(steps)};
}

// The batch grows while the run goes on, at the same steps and with the same bits everywhere.
TEST(AutomaticAccumulation, HasTheSameBitsOnEveryTierAndInEveryOrder) {
  const TinyTraining training;
  training.train("plain", automatic(40));
  training.train("drive", automatic(40) + states_on_drive(training) +
                              Arguments{"--micro-batch-order", "micro-batch-major"});
  training.train("layers", automatic(40) + states_on_drive(training) +
                               Arguments{"--micro-batch-order", "layer-major", "--recompute",
                                         "full", "--threads", "1"});
  const std::vector<MetricsRow> rows = training.rows("plain");
  for (const char* run : {"drive", "layers"}) {
    SCOPED_TRACE(run);
    training.expect_same(run, "plain", "final");
    expect_same_noise(training.rows(run), rows);
  }
  ASSERT_EQ(rows.size(), 40U);
  EXPECT_EQ(rows[0].columns.at("micro_batches"), 2);
  EXPECT_EQ(rows[16].columns.at("micro_batches"), 2);
  EXPECT_EQ(rows[17].columns.at("micro_batches"), 4);
  EXPECT_EQ(rows[33].columns.at("micro_batches"), 8);
  EXPECT_EQ(rows[33].columns.at("tokens"), 4 * rows[0].columns.at("tokens"));
}

// The run is stopped before a decision, between it and the change that it makes, and after that.
TEST(AutomaticAccumulation, GoesOnAfterAStopAnywhere) {
  const TinyTraining training;
  training.train("alone", automatic(40));
  for (const char* step : {"15", "16", "17", "18", "25"}) {
    SCOPED_TRACE(step);
    const std::string run = std::string("run") + step;
    training.train(
        run, automatic(40) + states_on_drive(training) + Arguments{"--stop-after-step", step});
    training.train(run, automatic(40) + Arguments{"--resume", "auto"});
    training.expect_same(run, "alone", "final");
    expect_same_noise(training.rows(run), training.rows("alone"));
  }
}

TEST(AutomaticAccumulation, OfRanksBeginsWithOneMicroBatch) {
  const TinyTraining training;
  const Arguments ranks = automatic(20) + Arguments{"--local-ranks", "2"};
  training.train("plain", ranks + Arguments{"--zero-stage", "1"});
  training.train("divided", ranks + Arguments{"--zero-stage", "3"} + states_on_drive(training));
  training.expect_same("divided", "plain", "final");
  expect_same_noise(training.rows("divided"), training.rows("plain"));
  EXPECT_EQ(training.rows("plain")[0].columns.at("micro_batches"), 1);
  EXPECT_EQ(training.rows("plain")[17].columns.at("micro_batches"), 2);
}

}  // namespace
}  // namespace terrace
