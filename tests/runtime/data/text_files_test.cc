#include "runtime/data/text_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using Paths = std::vector<std::string>;

TEST(TextFiles, RefusesAnOutputThatWouldReplaceAText) {
  const TemporaryDirectory directory;
  const std::string text = directory.write("h.txt", "a");
  EXPECT_EQ(list_text_files({text}, directory.path("other")), (Paths{text}));
  TERRACE_EXPECT_THROW_WITH(list_text_files({text}, text), ConfigError,
                            "would overwrite the input " + text);
  TERRACE_EXPECT_THROW_WITH(list_text_files({text}, directory.path("./h.txt")), ConfigError,
                            "would overwrite the input");
  for (const char* ending : {".idx", ".mask", ".partial", ".idx.partial", ".state", ".state.new"}) {
    const std::string beside = directory.write(std::string("out") + ending, "text");
    TERRACE_EXPECT_THROW_WITH(list_text_files({text, beside}, directory.path("out")), ConfigError,
                              "would overwrite the input " + beside);
  }
  std::filesystem::create_symlink(text, directory.path("link"));
  TERRACE_EXPECT_THROW_WITH(list_text_files({directory.path("link")}, text), ConfigError,
                            "would overwrite the input");
}

TEST(TextFiles, LeavesOutWhatEarlierRunsHaveLeftInADirectory) {
  const TemporaryDirectory directory;
  const Paths texts = {directory.write("d/a", "a"), directory.write("d/o.u16.txt", "b")};
  const std::string output = directory.path("d/o.u16");
  EXPECT_EQ(list_text_files({directory.path("d")}, output), texts);
  for (const char* name : {"d/o.u16.partial", "d/o.u16.idx.partial", "d/o.u16.state"}) {
    directory.write(name, "x");
  }
  EXPECT_EQ(list_text_files({directory.path("d")}, output), texts);
  for (const char* name : {"d/o.u16", "d/o.u16.idx", "d/o.u16.mask"}) directory.write(name, "x");
  EXPECT_EQ(list_text_files({directory.path("d")}, output), texts);
  // The output is also recognized by another name of its directory.
  EXPECT_EQ(list_text_files({directory.path("d")}, directory.path("d/../d/o.u16")), texts);
  TERRACE_EXPECT_THROW_WITH(list_text_files({output}, output), ConfigError,
                            "would overwrite the input");
  for (const std::string& text : texts) std::filesystem::remove(text);
  TERRACE_EXPECT_THROW_WITH(list_text_files({directory.path("d")}, output), ConfigError,
                            "no texts except");
}

TEST(TextFiles, KnowsJsonLinesInCapitalsTooAndDoesNotMixThem) {
  for (const char* name : {"d.jsonl", "D.JSONL", "d.Jsonl.gz", "d.jsonl.zst"}) {
    EXPECT_TRUE(are_json_lines({name, "other.jsonl"}));
    for (const Paths& files : {Paths{name, "a.txt"}, Paths{"a.txt", name}}) {
      TERRACE_EXPECT_THROW_WITH(are_json_lines(files), ConfigError,
                                std::string(name) + " has documents of JSON, but a.txt");
    }
  }
  EXPECT_FALSE(are_json_lines({"jsonl.txt", "jsonl"}));
  const TemporaryDirectory directory;
  const std::string array = directory.write("d.json", "[{}]");
  EXPECT_TRUE(are_json_lines({"other.ndjson", array}));
}

// No earlier run has written it, as the ends of its documents are not there.
TEST(TextFiles, RefusesAnOutputThatIsATextOfADirectory) {
  const TemporaryDirectory directory;
  directory.write("d/a", "a");
  const std::string text = directory.write("d/b", "b");
  TERRACE_EXPECT_THROW_WITH(list_text_files({directory.path("d")}, text), ConfigError,
                            "would overwrite the input " + text);
}

}  // namespace
}  // namespace terrace
