#include "runtime/data/run_directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/data/data_files.h"
#include "runtime/data/data_format.h"
#include "runtime/data/text_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Texts with run directories among them: one in runs/, one further below, and one of a run that was
// killed before its first step.
class RunDirectoriesTest : public testing::Test {
 protected:
  RunDirectoriesTest() {
    files_.write("d/a.txt", "first");
    files_.write("d/z/b.txt", "second");
    make_run("d/runs/one");
    make_run("d/z/deep/two");
    files_.write("d/runs/begun/lock", "");
  }

  void make_run(const std::string& name) {
    for (const char* file : {"config.toml", "run.json", "lock", "final/model.safetensors",
                             "rows.jsonl", "checkpoint-2/ids.bin"}) {
      files_.write(name + "/" + file, "of the run");
    }
  }

  std::string path(const std::string& name) const { return files_.path(name); }

  const TemporaryDirectory files_;
};

TEST_F(RunDirectoriesTest, AreKnownByTheirThreeFiles) {
  EXPECT_TRUE(is_run_directory(path("d/runs/one")));
  EXPECT_TRUE(is_run_directory(path("d/runs/begun")));
  EXPECT_FALSE(is_run_directory(path("d/runs")));
  EXPECT_FALSE(is_run_directory(path("d/nothing")));
  files_.write("e/config.toml", "");
  files_.write("e/run.json", "");
  EXPECT_FALSE(is_run_directory(path("e")));
  files_.write("f/lock", "");
  files_.write("f/a.txt", "");
  EXPECT_FALSE(is_run_directory(path("f")));
}

TEST_F(RunDirectoriesTest, AreLeftOutOfEveryFormat) {
  EXPECT_THAT(list_data_files({path("d")}), ElementsAre(path("d/a.txt"), path("d/z/b.txt")));
  EXPECT_THAT(list_text_files({path("d")}, path("out.bin")),
              ElementsAre(path("d/a.txt"), path("d/z/b.txt")));
  files_.write("d/ids.bin", "ab");
  files_.write("d/lines.jsonl", "{}");
  const auto taken = [&](TokenFileNames names) { return names.taken; };
  for (const DataUse use : {DataUse::kTraining, DataUse::kValidation}) {
    EXPECT_THAT(taken(list_token_files({path("d")}, use)), ElementsAre(path("d/ids.bin")));
    EXPECT_THAT(taken(list_jsonl_files({path("d")}, use)), ElementsAre(path("d/lines.jsonl")));
  }
}

TEST_F(RunDirectoriesTest, AreNamedWhereTheyAreLeftOut) {
  EXPECT_THAT(run_directories_below({path("d"), path("d/a.txt")}),
              ElementsAre(path("d/runs/begun"), path("d/runs/one"), path("d/z/deep/two")));
  const OpenedData data = open_data({{path("d")}, DataFormat::kAuto, 256});
  EXPECT_EQ(data.tokens->count(), 11);
  EXPECT_EQ(
      data.run_directories,
      "left out of --data because they are run directories of terrace train: begun, one, two");
  EXPECT_EQ(open_data({{path("d/a.txt")}, DataFormat::kAuto, 256}).run_directories, "");
}

// A file of a run is accepted if it is named; the directory itself is refused.
TEST_F(RunDirectoriesTest, AreRefusedWhereTheyAreNamed) {
  EXPECT_THAT(list_data_files({path("d/runs/one/rows.jsonl")}),
              ElementsAre(path("d/runs/one/rows.jsonl")));
  try {
    list_data_files({path("d/runs/one")});
    FAIL() << "a run directory was taken for data";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("one: this is a run directory of terrace train"));
  }
}

}  // namespace
}  // namespace terrace
