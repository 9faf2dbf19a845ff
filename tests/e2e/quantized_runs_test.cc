#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// Runs that train an adapter over a quantised base: tiers, ranks, stops, the files that they leave,
// and the flags that are refused.
namespace terrace {
namespace {

using testing::HasSubstr;

class QuantizedRuns : public testing::TestWithParam<const char*> {
 protected:
  QuantizedRuns() : training_(3, 64) {
    training_.train("base", {"--max-steps", "2", "--precision", "fp32"});
  }

  Arguments adapted(const Arguments& more = {}) const {
    return Arguments{"--model",         training_.path("base/final"),
                     "--init",          "weights",
                     "--max-steps",     "6",
                     "--lora-rank",     "4",
                     "--learning-rate", "0.01"} +
           more;
  }
  Arguments quantized(const Arguments& more = {}) const {
    return adapted(Arguments{"--base-quantization", GetParam()} + more);
  }
  Outcome run(const std::string& name, const Arguments& more) const {
    return run_program(training_.command(name, more));
  }
  void expect_refused(const Arguments& more, const std::string& why) const {
    const Outcome outcome = run("refused", more);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(why));
  }

  const TinyTraining training_;
};

TEST_P(QuantizedRuns, LeaveTheSameAdapterWhateverTheTiers) {
  training_.train("run", quantized());
  training_.train("plain", adapted());
  training_.train("everywhere", quantized(training_.nvme() + Arguments{"--place-parameters", "nvme",
                                                                       "--place-optimizer", "nvme",
                                                                       "--recompute", "full"}));
  training_.expect_same("run", "everywhere", "final");
  EXPECT_NE(training_.rows("run"), training_.rows("plain"));
  expect_near(training_.rows("run"), training_.rows("plain"), 0.2);
  const auto rows = training_.rows("run");
  EXPECT_LT(rows.back().columns.at("loss"), rows.front().columns.at("loss"));
}

TEST_P(QuantizedRuns, GoOnWithTheSameBits) {
  training_.train("alone", quantized());
  training_.train("run", quantized({"--stop-after-step", "3"}));
  training_.train("run", quantized(training_.nvme() +
                                   Arguments{"--resume", "auto", "--place-parameters", "nvme"}));
  training_.expect_same("run", "alone", "final");
}

TEST_P(QuantizedRuns, OfRanksThatShareAllHaveTheBitsOfRanksThatShareNothing) {
  const Arguments ranks = {"--local-ranks", "2", "--zero-stage"};
  training_.train("whole", quantized(ranks + Arguments{"0"}));
  training_.train("shared", quantized(ranks + Arguments{"3"} + training_.nvme() +
                                      Arguments{"--place-parameters", "nvme"}));
  training_.expect_same("shared", "whole", "final");
}

// An adapter over random weights keeps these weights, exactly, in its run directory.
TEST_P(QuantizedRuns, OverRandomWeightsGoOn) {
  const Arguments random = {"--lora-rank",         "2",       "--max-steps", "4",
                            "--base-quantization", GetParam()};
  training_.train("alone", random);
  training_.train("run", random + Arguments{"--stop-after-step", "2"});
  training_.train("run", random + Arguments{"--resume", "auto"});
  training_.expect_same("run", "alone", "final");
}

// The adapter is added to the base as it is in its directory, not to the quantised one that the run
// computed with.
TEST_P(QuantizedRuns, AreMergedWithTheUnquantizedBase) {
  training_.train("run", quantized());
  const auto merged = run_program({"merge", training_.path("base/final"),
                                   training_.path("run/final"), training_.path("merged")});
  EXPECT_EQ(merged.code, 0) << merged;
  std::vector<std::string> texts;
  for (const char* name : {"run/final", "merged"}) {
    const Outcome sampled = run_program({"sample", "--model", training_.path(name), "--prompt",
                                         "the ", "--max-new-tokens", "12", "--temperature", "0"});
    EXPECT_EQ(sampled.code, 0) << sampled;
    texts.push_back(sampled.output);
  }
  EXPECT_EQ(texts[1], texts[0]);
}

TEST_P(QuantizedRuns, SayHowTheBaseIsKept) {
  const Outcome outcome = run("dry", quantized({"--dry-run"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr(std::string("matrices of the blocks in ") + GetParam()));
  const Outcome plain = run("dry", adapted({"--dry-run"}));
  EXPECT_THAT(plain.output, testing::Not(HasSubstr("matrices of the blocks")));
}

TEST_P(QuantizedRuns, RefuseWhatTheyCannotDo) {
  expect_refused({"--max-steps", "2", "--base-quantization", GetParam()}, "no adapter");
  expect_refused({"--max-steps", "2", "--trainable", "*.0.*", "--base-quantization", GetParam()},
                 "no adapter");
  expect_refused(quantized({"--base-quantization", "nf5"}), "nf5");
  expect_refused(quantized({"--local-ranks", "2", "--tensor-parallel", "2"}),
                 "not whole blocks of the 64");
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedRuns, testing::Values("nf4", "int8"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
