#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/lfs_pointer.h"
#include "tests/e2e/tiny_training.h"

// Directories of models as people have them: in the hub's cache, cloned without git-lfs, with a
// tokenizer that is not read, and adapters whose base has moved.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelDirectories : public testing::Test {
 protected:
  ModelDirectories() {
    training_.train("first", {"--max-steps", "1", "--precision", "fp32"});
    fs::create_directories(path("hub/models--A--B/snapshots"));
    fs::copy(path("first/final"), path("hub/models--A--B/snapshots/abc"));
  }

  std::string path(const std::string& name) const { return training_.path(name); }
  Outcome train(const std::string& model, const Arguments& more = {}) const {
    const Arguments flags = {"--max-steps", "1", "--model", model, "--init", "auto"};
    return run_program(training_.command("run", flags + more));
  }
  static Arguments sample(const std::string& model) {
    return {"sample", "--model", model, "--prompt", "a", "--max-new-tokens", "1"};
  }

  const TinyTraining training_;
  const std::string cached_ = training_.path("hub/models--A--B");
};

TEST_F(ModelDirectories, OfTheHubsCacheAreRead) {
  const Outcome trained = train(cached_);
  EXPECT_EQ(trained.code, 0) << trained;
  EXPECT_THAT(trained.output,
              HasSubstr("starts from the weights in " + cached_ + "/snapshots/abc"));
  EXPECT_THAT(training_.directory().read("run/config.toml"),
              HasSubstr("model = \"" + cached_ + "/snapshots/abc\""));
  EXPECT_EQ(run_program(sample(cached_)).code, 0);
  const Outcome inspected = run_program({"inspect", cached_});
  EXPECT_EQ(inspected.code, 0) << inspected;
  EXPECT_THAT(inspected.output, HasSubstr("snapshots/abc"));
}

TEST_F(ModelDirectories, AreNamedWhereAFileOfThemIsGiven) {
  for (const std::string file : {"first/final/model.safetensors", "first/final/config.json"}) {
    const Outcome trained = train(path(file));
    EXPECT_EQ(trained.code, 2) << trained;
    EXPECT_THAT(trained.errors,
                HasSubstr("name the directory that the file is in: " + path("first/final")));
    EXPECT_EQ(run_program(sample(path(file))).code, 2);
    const Outcome merged = run_program({"merge", path(file), path(file), path("merged")});
    EXPECT_EQ(merged.code, 2) << merged;
    EXPECT_THAT(merged.errors, HasSubstr("name the directory that the file is in"));
  }
}

TEST_F(ModelDirectories, ClonedWithoutGitLfsAreNamed) {
  const std::string pointer = std::string(kLfsPointerBegin) + ".github.com/spec/v1\noid x\n";
  for (const std::string name : {"tokenizer.json", "config.json"}) {
    training_.directory().write("first/final/" + name, pointer);
    const Outcome outcome = train(path("first/final"));
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(name + ": a Git LFS pointer"));
    EXPECT_THAT(outcome.errors, HasSubstr("git lfs pull"));
  }
}

TEST_F(ModelDirectories, WithATokenizerThatIsNotReadAreNotTrainedOnBytes) {
  training_.directory().write("first/final/vocab.json", "{}");
  training_.directory().write("first/final/merges.txt", "");
  const Outcome refused = train(path("first/final"));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("merges.txt, vocab.json"));
  EXPECT_EQ(run_program(sample(path("first/final"))).code, 2);
  const Outcome asked = train(path("first/final"), {"--tokenizer", "bytes"});
  EXPECT_EQ(asked.code, 0) << asked;
}

TEST_F(ModelDirectories, AnAdapterNamesABaseThatHasMoved) {
  training_.train("tuned", {"--max-steps", "1", "--model", path("first/final"), "--init", "auto",
                            "--lora-rank", "2"});
  const std::string adapter = path("tuned/final");
  EXPECT_EQ(run_program(sample(adapter)).code, 0);
  const Outcome as_model = train(adapter);
  EXPECT_THAT(as_model.errors,
              HasSubstr("--model " + path("first/final") + " --adapter " + adapter));
  fs::rename(path("first/final"), path("moved"));
  const Outcome sampled = run_program(sample(adapter));
  EXPECT_EQ(sampled.code, 2) << sampled;
  EXPECT_THAT(sampled.errors, HasSubstr("the base of this adapter is '" + path("first/final")));
  EXPECT_THAT(sampled.errors,
              HasSubstr("give the directory of the base, and --adapter " + adapter));
  const Outcome moved = train(adapter);
  EXPECT_EQ(moved.code, 2) << moved;
  EXPECT_THAT(moved.errors, HasSubstr("where its base, '" + path("first/final") + "', is now"));
}

}  // namespace
}  // namespace terrace
