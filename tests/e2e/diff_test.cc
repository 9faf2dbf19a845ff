#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kEqual = 0;
constexpr int kDiffers = 7;

class Diff : public testing::Test {
 protected:
  Outcome diff(const std::string& a, const std::string& b, const Arguments& more = {}) const {
    return run_program(Arguments{"diff", training_.path(a), training_.path(b)} + more);
  }
  // Returns the result of the JSON document.
  json result(const std::string& a, const std::string& b, int code) const {
    const Outcome outcome = diff(a, b, {"--json"});
    EXPECT_EQ(outcome.code, code) << outcome;
    const json document = json::parse(outcome.output);
    EXPECT_EQ(document.at("schema"), "terrace.diff/1");
    return document.at("results").at(0);
  }
  void expect_equal(const std::string& a, const std::string& b, int steps) const {
    const json found = result(a, b, kEqual);
    EXPECT_EQ(found.at("equal"), true) << found.dump(2);
    EXPECT_EQ(found.at("hashes").at("compared"), true) << found.dump(2);
    EXPECT_EQ(found.at("hashes").at("steps"), steps) << found.dump(2);
    EXPECT_GT(found.at("hashes").at("values"), 50 * steps);
  }

  const TinyTraining training_;
  const Arguments hashed_ = {"--record-hashes", "--max-steps", "8"};
};

TEST_F(Diff, SwitchesDoNotChangeWhatIsRecorded) {
  training_.train("plain", hashed_);
  const Outcome told = training_.train(
      "tiers", hashed_ + training_.nvme() +
                   Arguments{"--device-memory", "4MiB", "--place-parameters", "nvme",
                             "--place-optimizer", "nvme", "--recompute", "full"});
  EXPECT_THAT(told.output, HasSubstr("go to " + training_.path("tiers/hashes")));
  training_.train("order", hashed_ + Arguments{"--micro-batch-order", "layer-major",
                                               "--master-weights", "fp32", "--threads", "1"});
  training_.train("stages", hashed_ + Arguments{"--local-ranks", "2", "--pipeline-parallel", "2"});
  for (const char* run : {"tiers", "order", "stages"}) expect_equal("plain", run, 8);
  EXPECT_THAT(diff("plain", "tiers").output, HasSubstr("options that do not change results:"));
  const Arguments grows = hashed_ + Arguments{"--accumulation-schedule", "1@1,3@4,2@7"};
  training_.train("grows", grows);
  training_.train(
      "grows-on-tiers",
      grows + training_.nvme() +
          Arguments{"--device-memory", "4MiB", "--place-parameters", "nvme", "--place-activations",
                    "host", "--micro-batch-order", "layer-major", "--recompute", "none"});
  expect_equal("grows", "grows-on-tiers", 8);
  training_.train("unrecorded", {"--max-steps", "8"});
  training_.expect_same("plain", "unrecorded", "final");
}

TEST_F(Diff, IslandsDoNotChangeWhatIsRecorded) {
  const Arguments ranks =
      Arguments{"--record-hashes", "--max-steps", "4", "--local-ranks", "4", "--zero-stage", "3"};
  training_.train("all", ranks);
  for (const char* partition : {"hpz", "hsdp"}) {
    training_.train(partition,
                    ranks + Arguments{"--zero-partition", partition, "--island-ranks", "2"});
    expect_equal("all", partition, 4);
    training_.expect_same(partition, "all", "final");
  }
}

// One byte of the text, and so one token, differs.
TEST_F(Diff, NamesTheInputThatDiffersAndThenTheEmbedding) {
  std::string text = generated_text(1000, 3);
  training_.directory().write("a.txt", text);
  text[517] = text[517] == 'e' ? 'a' : 'e';
  training_.directory().write("b.txt", text);
  for (const std::string run : {"a", "b"}) {
    training_.train(run, Arguments{"--record-hashes", "--max-steps", "15", "--data",
                                   training_.path(run + ".txt"), "--validation-fraction", "0"});
  }
  const json found = result("a", "b", kDiffers);
  const int step = found.at("hashes").at("differing_step");
  EXPECT_GT(step, 1) << "the text has 31 samples, of which a step takes 2";
  const auto rows_a = training_.rows("a");
  const auto rows_b = training_.rows("b");
  const auto parts = std::ranges::mismatch(rows_a, rows_b);
  ASSERT_NE(parts.in1, rows_a.end());
  EXPECT_EQ(parts.in1->step, step);
  const json& ops = found.at("hashes").at("ops");
  EXPECT_EQ(ops.at(0).at("cause"), "input");
  EXPECT_EQ(ops.at(1).at("op"), "forward");
  EXPECT_EQ(ops.at(1).at("unit_name"), "the embedding");
  EXPECT_EQ(ops.at(1).at("micro_batch"), ops.at(0).at("micro_batch"));
  EXPECT_EQ(ops.at(1).at("differing_reads"), json::array({"tokens"}));
  EXPECT_EQ(ops.at(1).at("cause"), "follows");
  const std::string said = diff("a", "b").output;
  EXPECT_THAT(said, HasSubstr("first: input of micro-batch"));
  EXPECT_THAT(said, HasSubstr("then:  forward of the embedding, micro-batch"));
  EXPECT_THAT(said, HasSubstr("data: "));
}

TEST_F(Diff, OtherSeedsAreAnotherStart) {
  training_.train("a", hashed_);
  training_.train("b", hashed_ + Arguments{"--seed", "5"});
  const json found = result("a", "b", kDiffers);
  EXPECT_EQ(found.at("hashes").at("differing_step"), 1);
  training_.train("c", hashed_ + Arguments{"--learning-rate", "1e-3"});
  const json other = result("a", "c", kDiffers);
  EXPECT_EQ(other.at("hashes").at("differing_step"), 1);
  const json& first = other.at("hashes").at("ops").at(0);
  EXPECT_EQ(first.at("op"), "update");
  EXPECT_EQ(first.at("differing_reads"), json::array({"scalars"}));
}

TEST_F(Diff, AResumedRunGoesOnInTheSameFile) {
  training_.train("alone", hashed_);
  training_.train("run", hashed_ + Arguments{"--stop-after-step", "5"});
  training_.train("run", hashed_ + Arguments{"--resume", "auto", "--recompute", "full"});
  expect_equal("alone", "run", 8);
}

TEST_F(Diff, AKilledRunIsComparedAsFarAsItIsWhole) {
  const Arguments steps = {"--record-hashes", "--max-steps", "200", "--checkpoint-every", "10"};
  training_.train("alone", steps);
  {
    ProgramRun run(training_.command("run", steps));
    ASSERT_TRUE(run.wait_until([&] { return training_.last_committed("run") >= 20; }));
    run.send(SIGKILL);
    run.wait();
  }
  const json found = result("alone", "run", kEqual);
  EXPECT_GE(found.at("hashes").at("steps"), 19);
  EXPECT_THAT(diff("alone", "run").output, HasSubstr("does not have"));
  const std::string whole = training_.directory().read("run/hashes/rank-0.bin");
  training_.directory().write("run/hashes/rank-0.bin", whole.substr(0, whole.size() - 5));
  EXPECT_THAT(diff("alone", "run").output, HasSubstr("are torn and left out"));
  training_.train("run", steps + Arguments{"--resume", "auto"});
  expect_equal("alone", "run", 200);
}

TEST_F(Diff, RunsWithoutHashesAreComparedByTheirRows) {
  training_.train("a", {"--max-steps", "4"});
  training_.train("b", hashed_ + Arguments{"--learning-rate", "1e-3"});
  const Outcome outcome = diff("a", "b");
  EXPECT_EQ(outcome.code, kDiffers) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("loss differs from step 2 on: "));
  EXPECT_THAT(outcome.output, HasSubstr("options that may change results:\n  learning_rate"));
  EXPECT_THAT(outcome.output, HasSubstr("has no hashes, so only the rows are compared"));
}

TEST_F(Diff, SaysWhatCannotBeCompared) {
  training_.train("one", hashed_);
  training_.train("two", hashed_ + Arguments{"--local-ranks", "2"});
  EXPECT_THAT(diff("one", "two").output,
              HasSubstr("cannot be compared: other numbers of data-parallel ranks: 1 and 2"));
}

TEST_F(Diff, RefusesPathsThatAreNoRuns) {
  training_.train("run", {"--max-steps", "1"});
  for (const std::string other : {"none", "model", "run/final"}) {
    const Outcome outcome = diff("run", other);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(training_.path(other)));
  }
  EXPECT_EQ(run_program({"diff", training_.path("run")}).code, 2);
}

}  // namespace
}  // namespace terrace
