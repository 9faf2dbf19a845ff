#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A model that is trained until it has learned the words of the text.
class Results : public testing::Test {
 protected:
  Results() {
    training_.train("run", {"--max-steps", "150", "--stop-after-step", "150", "--micro-batch-size",
                            "4", "--checkpoint-every", "100"});
    rows_ = training_.rows("run");
  }

  Outcome sample(const Arguments& more, const std::string& model = "run/final") const {
    return run_program(Arguments{"sample", "--model", training_.path(model)} + more);
  }

  const TinyTraining training_;
  std::vector<MetricsRow> rows_;
};

TEST_F(Results, TrainingLearnsAndTheFinalModelHasWhatWasLearned) {
  ASSERT_EQ(rows_.size(), 150U);
  const double random_loss = rows_.front().columns.at("loss");
  const double validation_loss = rows_.back().columns.at("validation_loss");
  EXPECT_NEAR(random_loss, std::log(256.0), 0.3);  // a fresh model knows nothing
  EXPECT_LT(validation_loss, random_loss / 2);
  const auto files = training_.files("run", "final");
  ASSERT_EQ(files.count("config.json"), 1U);
  ASSERT_EQ(files.count("model.safetensors"), 1U);
  EXPECT_EQ(nlohmann::json::parse(files.at("config.json")).value("model_type", ""), "llama");

  // A run that starts from this result starts where this run ended. If it is asked to, it starts
  // afresh.
  const Arguments again = {"train",
                           "--model",
                           training_.path("run/final"),
                           "--data",
                           training_.path("text.txt"),
                           "--micro-batch-size",
                           "8",
                           "--max-steps",
                           "1",
                           "--host-memory",
                           "64MiB"};
  const Outcome from_weights =
      run_program(again + Arguments{"--run-dir", training_.path("weights")});
  ASSERT_EQ(from_weights.code, 0) << from_weights;
  const double first = training_.rows("weights").front().columns.at("loss");
  // The text has the same distribution. The loss of a step of 8 x 32 tokens scatters by a few
  // tenths around it.
  EXPECT_NEAR(first, validation_loss, 0.4);
  const Outcome from_random =
      run_program(again + Arguments{"--run-dir", training_.path("random"), "--init", "random"});
  ASSERT_EQ(from_random.code, 0) << from_random;
  EXPECT_GT(training_.rows("random").front().columns.at("loss"), 2 * first);
}

// The last lines of a run.
TEST(EndOfARun, SaysHowTheLossWentAndWhatIsNext) {
  const TinyTraining training;
  const std::string output = training.train("run", {"--max-steps", "3"}).output;
  EXPECT_THAT(output, testing::ContainsRegex("\nloss: [0-9.]+ in step 1, [0-9.]+ in step 3, "
                                             "validation_loss [0-9.]+\nto try the model: "));
  EXPECT_THAT(output, HasSubstr(" sample --model " + training.path("run/final") +
                                " --prompt TEXT\ncurves: " + training.path("run/metrics.jsonl")));
  const std::string stopped =
      training.train("other", {"--max-steps", "3", "--stop-after-step", "1"}).output;
  EXPECT_THAT(stopped, testing::ContainsRegex("\nloss: [0-9.]+ in step 1\ncurves: "));
}

TEST_F(Results, SamplingRepeatsWithOneSeed) {
  const Arguments prompt = {"--prompt", "the field", "--max-new-tokens", "60"};
  const Outcome first = sample(prompt + Arguments{"--seed", "3"});
  ASSERT_EQ(first.code, 0) << first;
  EXPECT_THAT(first.output, StartsWith("the field"));
  EXPECT_EQ(first.output.size(), std::string("the field\n").size() + 60);
  EXPECT_EQ(sample(prompt + Arguments{"--seed", "3"}).output, first.output);
  const Outcome answer = sample(prompt + Arguments{"--seed", "3", "--answer-only"});
  EXPECT_EQ("the field" + answer.output, first.output);
  const Outcome refused = sample(prompt + Arguments{"--json", "--answer-only"});
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("--answer-only"));
  EXPECT_NE(sample(prompt + Arguments{"--seed", "4"}).output, first.output);
  // The likeliest text needs no seed, and is made of the words that were learned.
  const Outcome cold = sample(prompt + Arguments{"--temperature", "0", "--seed", "3"});
  EXPECT_EQ(sample(prompt + Arguments{"--temperature", "0", "--seed", "4"}).output, cold.output);
  EXPECT_THAT(cold.output, HasSubstr(" t"));
}

TEST_F(Results, ParametersOnADriveGiveTheTextOfParametersInMemory) {
  const Arguments prompt = {"--prompt", "the field", "--max-new-tokens", "40", "--seed", "3"};
  const Arguments tiers = {"--host-memory",      "2MiB", "--nvme", training_.path(""),
                           "--place-parameters", "nvme"};
  for (const char* model : {"run/final", "run/checkpoint-100"}) {
    const Outcome held = sample(prompt, model);
    const Outcome tiered = sample(prompt + tiers, model);
    EXPECT_EQ(tiered.code, 0) << tiered;
    EXPECT_EQ(tiered.output, held.output) << model;
    EXPECT_THAT(tiered.errors, HasSubstr("nvme"));  // the ledger
    const Outcome told = sample(prompt + tiers + Arguments{"--json"}, model);
    const auto result = nlohmann::json::parse(told.output).at("results").at(0);
    EXPECT_GT(result.at("nvme_read_bytes_per_pass").get<std::int64_t>(), 0);
  }
  const Arguments small = {"--host-memory", "100KiB", "--nvme", training_.path("")};
  const Outcome refused = sample(prompt + small);
  EXPECT_EQ(refused.code, 3) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("raise --host-memory to"));
  const Outcome nowhere = sample(prompt + Arguments{"--place-parameters", "nvme"});
  EXPECT_EQ(nowhere.code, 2) << nowhere;
  EXPECT_THAT(nowhere.errors, HasSubstr("give --nvme DIR"));
  EXPECT_EQ(sample(prompt + Arguments{"--place-parameters", "device"}).code, 2);
}

TEST_F(Results, ADamagedModelIs5) {
  std::string bytes = training_.directory().read("run/final/model.safetensors");
  training_.directory().write("run/final/model.safetensors", bytes.substr(0, bytes.size() - 10));
  const Outcome outcome = sample({"--prompt", "x"});
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("model.safetensors"));
}

TEST_F(Results, SamplingFromACheckpoint) {
  const Outcome outcome = sample({"--prompt", "the "}, "run/checkpoint-100");
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, StartsWith("the "));
}

}  // namespace
}  // namespace terrace
