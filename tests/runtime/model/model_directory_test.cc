#include "runtime/model/model_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/hub_cache.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/temporary_directory.h"

// Paths that people give as a model: directories of the hub's cache, files, and places where
// nothing is.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string refusal_of_path(const std::string& path) {
  try {
    directory_of_model(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string refusal_of_model(const std::string& model) {
  try {
    load_model_config(model);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelDirectory, OfTheHubsCacheIsTheSnapshotOfMain) {
  const TemporaryDirectory directory;
  const std::string model = directory.path("models--A--B");
  directory.write("models--A--B/snapshots/one/config.json", "{}");
  EXPECT_EQ(directory_of_model(model), model + "/snapshots/one");
  EXPECT_EQ(directory_of_model(model + "/"), model + "/snapshots/one");
  EXPECT_EQ(directory_of_model(model + "/snapshots"), model + "/snapshots/one");
  EXPECT_EQ(directory_of_model(model + "/snapshots/one"), model + "/snapshots/one");
  directory.write("models--A--B/snapshots/two/config.json", "{}");
  const std::string several = refusal_of_path(model);
  EXPECT_THAT(several, HasSubstr("there is no refs/main, and the snapshots are one, two"));
  EXPECT_THAT(several, HasSubstr("for example " + model + "/snapshots/one"));
  directory.write("models--A--B/refs/main", "two\n");
  EXPECT_EQ(directory_of_model(model), model + "/snapshots/two");
  directory.write("models--A--B/refs/main", "three");
  EXPECT_THAT(refusal_of_path(model), HasSubstr("refs/main names three"));
}

TEST(ModelDirectory, OfTheHubsCacheMayHaveAnotherNameAndMustHaveASnapshot) {
  const TemporaryDirectory directory;
  directory.write("renamed/snapshots/one/config.json", "{}");
  EXPECT_EQ(directory_of_model(directory.path("renamed")), directory.path("renamed"));
  directory.write("renamed/refs/main", "one");
  EXPECT_EQ(directory_of_model(directory.path("renamed")), directory.path("renamed/snapshots/one"));
  std::filesystem::create_directories(directory.path("models--A--B/snapshots"));
  EXPECT_THAT(refusal_of_path(directory.path("models--A--B")), HasSubstr("has no snapshot"));
}

TEST(ModelDirectory, NamesOfSnapshotsAreTheirModels) {
  EXPECT_EQ(model_name_of("/data/qwen"), "qwen");
  EXPECT_EQ(model_name_of("/data/qwen/"), "qwen");
  EXPECT_EQ(model_name_of("hub/models--Qwen--Qwen3-0.6B/snapshots/c1899/"), "Qwen3-0.6B");
  EXPECT_EQ(model_name_of("qwen/snapshots/c1899"), "c1899");
  EXPECT_EQ(model_name_of("/"), "");
}

TEST(ModelDirectory, IsNamedWhereAFileOfItIsGiven) {
  const TemporaryDirectory directory;
  for (const char* name : {"m/model.safetensors", "m/config.json"}) {
    EXPECT_THAT(refusal_of_path(directory.write(name, "{}")),
                HasSubstr("name the directory that the file is in: " + directory.path("m")));
  }
  const std::string gguf = refusal_of_path(directory.write("q.gguf", "GGUF"));
  EXPECT_THAT(gguf, HasSubstr("q.gguf: GGUF is not read"));
  EXPECT_THAT(gguf, HasSubstr("the Hugging Face directory"));
  EXPECT_EQ(directory_of_model("nano"), "nano");
  EXPECT_EQ(directory_of_model(directory.path("none")), directory.path("none"));
}

TEST(ModelDirectory, PathsThatLeadNowhereAreNoPresets) {
  for (const char* path : {"/data/models/nano", "./nano", "../llama-8b", "a/b/c"}) {
    EXPECT_THAT(refusal_of_model(path), HasSubstr("there is no such directory")) << path;
    EXPECT_THAT(refusal_of_model(path), Not(HasSubstr("did you mean"))) << path;
  }
  EXPECT_THAT(refusal_of_model("~/models/x"), HasSubstr("write $HOME in its place"));
  EXPECT_THAT(refusal_of_model("lama-8b"), HasSubstr("did you mean llama-8b?"));
  EXPECT_THAT(refusal_of_model("Qwen3-0.6B"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal_of_model("Qwen3-0.6B"), HasSubstr("Presets: "));
}

TEST(ModelDirectory, NamesOfTheHubAreLookedForInItsCache) {
  const TemporaryDirectory directory;
  const char* const before = std::getenv("HF_HUB_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("HF_HUB_CACHE", directory.path().c_str(), 1);
  const std::string absent = refusal_of_model("https://huggingface.co/A/B");
  directory.write("models--A--B/snapshots/one/config.json", "{}");
  const std::string cached = refusal_of_model("A/B");
  before == nullptr ? ::unsetenv("HF_HUB_CACHE") : ::setenv("HF_HUB_CACHE", kept.c_str(), 1);
  EXPECT_THAT(absent, HasSubstr("nothing is downloaded"));
  EXPECT_THAT(absent, HasSubstr("hf download A/B --local-dir DIR"));
  EXPECT_THAT(cached, HasSubstr("give --model " + directory.path("models--A--B")));
}

// The directory of a run stands for its result.
TEST(ModelDirectory, OfARunIsItsFinal) {
  const TemporaryDirectory directory;
  directory.write("run/final/config.json", "{}");
  directory.write("adapted/final/adapter_config.json", "{}");
  directory.write("model/config.json", "{}");
  directory.write("model/final/config.json", "{}");
  EXPECT_EQ(directory_of_model(directory.path("run")), directory.path("run/final"));
  EXPECT_EQ(directory_of_model(directory.path("adapted")), directory.path("adapted/final"));
  EXPECT_EQ(directory_of_model(directory.path("model")), directory.path("model"));
  EXPECT_THAT(refusal_of_model(directory.path("ran")),
              HasSubstr("did you mean " + directory.path("run")));
}

TEST(ModelDirectory, WithoutAConfigNamesTheModelsInIt) {
  const TemporaryDirectory directory;
  directory.write("models/one/config.json", "{}");
  EXPECT_THAT(refusal_of_model(directory.path("models")),
              HasSubstr("name a directory in it that has one: " + directory.path("models/one")));
  directory.write("hub/models--A--B/snapshots/one/config.json", "{}");
  EXPECT_THAT(refusal_of_model(directory.path("hub")),
              HasSubstr(directory.path("hub/models--A--B")));
  directory.write("converted/model-q4.gguf", "GGUF");
  EXPECT_THAT(refusal_of_model(directory.path("converted")), HasSubstr("GGUF is not read"));
}

}  // namespace
}  // namespace terrace
