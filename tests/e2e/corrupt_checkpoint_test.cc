#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A run with checkpoints of steps 3 and 6, the last of which is damaged.
class CorruptCheckpoint : public testing::Test {
 protected:
  CorruptCheckpoint() {
    training_.train("run",
                    {"--max-steps", "9", "--checkpoint-every", "3", "--stop-after-step", "6"});
    rows_ = training_.rows("run");
  }

  std::string content(const std::string& file) const {
    return training_.directory().read("run/checkpoint-6/" + file);
  }
  void write(const std::string& file, const std::string& content) const {
    training_.directory().write("run/checkpoint-6/" + file, content);
  }

  Outcome resume(const std::string& from, const Arguments& more = {}) const {
    return run_program(
        training_.command("run", Arguments{"--max-steps", "9", "--resume", from} + more));
  }

  // Expects the damage to be found and named, to change nothing, and to leave the other checkpoint
  // as it is.
  void expect_refused(const std::string& named) const {
    const Outcome outcome = resume("auto");
    EXPECT_EQ(outcome.code, 5) << outcome;
    EXPECT_NE(outcome.errors.find(named), std::string::npos) << outcome;
    EXPECT_NE(outcome.errors.find("earlier checkpoint"), std::string::npos) << outcome;
    EXPECT_NE(outcome.errors.find("--resume " + training_.path("run/checkpoint-3") +
                                  " --overwrite-later"),
              std::string::npos)
        << outcome;
    EXPECT_EQ(outcome.output.find("\nstep "), std::string::npos) << outcome;
    EXPECT_EQ(training_.rows("run"), rows_);
    const Outcome earlier = resume(training_.path("run/checkpoint-3"), {"--overwrite-later"});
    EXPECT_EQ(earlier.code, 0) << earlier;
    ASSERT_EQ(training_.rows("run").size(), 9U);
    EXPECT_EQ(training_.rows("run").at(5), rows_.at(5));
  }

  const TinyTraining training_;
  std::vector<MetricsRow> rows_;
};

TEST_F(CorruptCheckpoint, AFlippedBitOfATensor) {
  const std::string file = "exp_avg-00001.safetensors";
  std::string bytes = content(file);
  bytes.at(bytes.size() - 5) = static_cast<char>(bytes.at(bytes.size() - 5) ^ 1);
  write(file, bytes);
  expect_refused(file);
}

TEST_F(CorruptCheckpoint, TheOnlyOneIsSaidToBeThat) {
  fs::remove_all(training_.path("run/checkpoint-3"));
  const std::string file = "exp_avg-00001.safetensors";
  std::string bytes = content(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(file, bytes);
  const Outcome outcome = resume("auto");
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_NE(outcome.errors.find("has no other checkpoint"), std::string::npos) << outcome;
}

TEST_F(CorruptCheckpoint, AFlippedBitOfAHeader) {
  const std::string file = "master-00000.safetensors";
  std::string bytes = content(file);
  bytes.at(12) = static_cast<char>(bytes.at(12) ^ 4);
  write(file, bytes);
  expect_refused(file);
}

TEST_F(CorruptCheckpoint, ATruncatedFile) {
  const std::string file = "exp_avg_sq-00002.safetensors";
  const std::string bytes = content(file);
  write(file, bytes.substr(0, bytes.size() / 2));
  expect_refused(file);
}

TEST_F(CorruptCheckpoint, AFileThatIsGone) {
  const std::string file = "master-00001.safetensors";
  fs::remove(training_.path("run/checkpoint-6/" + file));
  expect_refused(file);
}

TEST_F(CorruptCheckpoint, ATruncatedManifest) {
  const std::string manifest = content("manifest.json");
  write("manifest.json", manifest.substr(0, manifest.size() / 2));
  expect_refused("manifest.json");
}

TEST_F(CorruptCheckpoint, AnEmptyManifest) {
  write("manifest.json", "");
  expect_refused("manifest.json");
}

TEST_F(CorruptCheckpoint, AManifestOfAnotherShape) {
  write("manifest.json", "[1, 2, 3]");
  expect_refused("manifest.json");
}

TEST_F(CorruptCheckpoint, AManifestWithoutItsFiles) {
  write("manifest.json", R"({"schema": "terrace.checkpoint/1", "step": 6, "samples": 12})");
  expect_refused("manifest.json");
}

// The step says where the run goes on, so it must not be taken from a damaged manifest.
TEST_F(CorruptCheckpoint, AManifestWithAnotherStep) {
  std::string manifest = content("manifest.json");
  const std::size_t at = manifest.find("\"step\": 6");
  ASSERT_NE(at, std::string::npos) << manifest;
  manifest.at(at + 8) = '7';
  write("manifest.json", manifest);
  expect_refused("manifest.json");
}

TEST_F(CorruptCheckpoint, ABrokenModelConfig) {
  write("config.json", "{");
  expect_refused("config.json");
}

// Only one stage of a pipeline reads the head's moments. The damage that it finds ends all ranks
// before any of them gives up the later checkpoint, or a row of the metrics.
TEST_F(CorruptCheckpoint, DamageThatOneRankReadsEndsAllBeforeAnythingIsChanged) {
  const std::string file = "exp_avg-00003.safetensors";
  const std::string name = "run/checkpoint-3/" + file;
  std::string bytes = training_.directory().read(name);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  training_.directory().write(name, bytes);
  const Outcome outcome = run_program(training_.command(
      "run", {"--max-steps", "9", "--local-ranks", "2", "--pipeline-parallel", "2", "--resume",
              training_.path("run/checkpoint-3"), "--overwrite-later"}));
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_NE(outcome.errors.find(file), std::string::npos) << outcome;
  EXPECT_NE(outcome.errors.find("at offset 4096"), std::string::npos) << outcome;
  EXPECT_TRUE(training_.directory().has("run/checkpoint-6/manifest.json"));
  EXPECT_EQ(training_.rows("run"), rows_);
  const Outcome later = resume("auto");
  EXPECT_EQ(later.code, 0) << later;
}

TEST_F(CorruptCheckpoint, ADirectoryThatIsNoCheckpointIsAUsageError) {
  const Outcome outcome = resume(training_.path("nvme"));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("is not a checkpoint"), std::string::npos) << outcome;
}

// The order of samples comes from the seed. With another one the run would go on with data that it
// has seen.
TEST_F(CorruptCheckpoint, AnotherSeedIsAUsageError) {
  const Outcome outcome = run_program(
      training_.command("run", {"--max-steps", "9", "--resume", "auto", "--seed", "77"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("--seed"), std::string::npos) << outcome;
  EXPECT_EQ(training_.rows("run"), rows_);
}

TEST_F(CorruptCheckpoint, AnotherModelIsAUsageError) {
  training_.directory().write("wide/config.json", llama_config(2, 64));
  const Outcome outcome =
      run_program({"train", "--model", training_.path("wide"), "--data", training_.path("text.txt"),
                   "--max-steps", "9", "--run-dir", training_.path("run"), "--resume", "auto"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.errors.find("the model of the checkpoint"), std::string::npos) << outcome;
  EXPECT_EQ(training_.rows("run"), rows_);
}

}  // namespace
}  // namespace terrace
