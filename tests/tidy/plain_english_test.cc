#include "tests/tidy/plain_english.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/prose.h"
#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

bool is_stilted(std::string_view sentence) { return !stilted_pattern(sentence).empty(); }

TEST(PlainEnglish, SentencesThatLeaveOutANoun) {
  EXPECT_TRUE(is_stilted("Of all tasks, the first one."));
  EXPECT_TRUE(is_stilted("What is left of it."));
  EXPECT_TRUE(is_stilted("Whoever holds it waits."));
  EXPECT_TRUE(is_stilted("It keeps those of the others."));
  EXPECT_TRUE(is_stilted("A buffer holds so many of them."));
  EXPECT_TRUE(is_stilted("All are freed but for the last."));
  EXPECT_TRUE(is_stilted("It is as small as can be."));
  EXPECT_TRUE(is_stilted("A rank has an own thread."));
}

TEST(PlainEnglish, SentencesThatReadWell) {
  EXPECT_FALSE(is_stilted("Returns the first of all tasks."));
  EXPECT_FALSE(is_stilted("Of course it waits."));
  EXPECT_FALSE(is_stilted("What fits?"));
  EXPECT_FALSE(is_stilted("It waits so much that it stalls."));
  EXPECT_FALSE(is_stilted("Keeps those, of which the last is free."));
  EXPECT_FALSE(is_stilted("A rank has its own thread."));
}

std::vector<std::string> texts(std::string_view path, std::string_view text) {
  std::vector<std::string> out;
  for (Sentence& sentence : sentences_of(path, text)) out.push_back(std::move(sentence.text));
  return out;
}

using Texts = std::vector<std::string>;

TEST(Prose, SentencesOfDocuments) {
  EXPECT_EQ(texts("a.md",
                  "# Title\n\nOne `a. B` here.\nTwo\n[goes](x.md) on.\n\n* Three. four\n* Five\n"),
            (Texts{"One `x` here.", "Two goes on.", "Three. four", "Five"}));
  EXPECT_EQ(texts("a.md", "```\nNot code. Not this.\n```\n| a | four words are enough |\n"),
            (Texts{"four words are enough"}));
}

TEST(Prose, SentencesOfSources) {
  EXPECT_EQ(
      texts("a.cc", "// One goes\n// on. Two.\nint x;  // three\nf(\"a string that is long\");\n"),
      (Texts{"One goes on.", "Two.", "three", "a string that is long"}));
  EXPECT_EQ(texts("a.sh", "# One.\necho \"short\"\n"), (Texts{"One."}));
}

// How many sentences of a folder match a pattern today. A number may only fall: whoever rewrites a
// sentence lowers its folder's ceiling. runtime/step counts by itself.
const std::map<std::string, int>& ceilings() {
  static const std::map<std::string, int> kCeilings = {
      {"bench", 1},
      {"python", 1},
      {"runtime", 1},
      {"tests", 18},
  };
  return kCeilings;
}

std::string folder_of(const std::string& path) {
  if (path.starts_with("runtime/step/")) return "runtime/step";
  return path.find('/') == std::string::npos ? "." : path.substr(0, path.find('/'));
}

TEST(PlainEnglish, NoFolderGetsWorse) {
  std::vector<SourceFile> files = read_source_tree();
  for (const std::string_view ending : {".md", ".py"}) {
    for (SourceFile& file : read_files(ending)) files.push_back(std::move(file));
  }
  std::map<std::string, int> counts = {};
  std::map<std::string, std::string> listed;
  for (const SourceFile& file : files) {
    for (const Sentence& sentence : sentences_of(file.path, file.text)) {
      const std::string_view pattern = stilted_pattern(sentence.text);
      if (pattern.empty()) continue;
      const std::string folder = folder_of(file.path);
      ++counts[folder];
      listed[folder] += fmt::format("{}:{}: matches '{}': {}\n", file.path, sentence.line, pattern,
                                    sentence.text);
    }
  }
  for (const auto& [folder, ceiling] : ceilings()) counts.try_emplace(folder, 0);
  for (const auto& [folder, count] : counts) {
    const auto found = ceilings().find(folder);
    const int ceiling = found == ceilings().end() ? 0 : found->second;
    EXPECT_LE(count, ceiling) << "say these as to a colleague who has not seen the file:\n"
                              << listed[folder];
    EXPECT_GE(count, ceiling) << folder << " became better: lower its ceiling to " << count;
  }
}

}  // namespace
}  // namespace terrace::tidy
