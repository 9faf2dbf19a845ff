#include "tests/tidy/doc_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

namespace terrace::tidy {
namespace {

// Counts the violations of a document in docs/, in a tree that has docs/there.md and base/error.h.
std::size_t count(std::string_view text) {
  return check_links("docs/page.md", text,
                     [](const std::string& path) {
                       return path == "docs/there.md" || path == "base/error.h";
                     })
      .size();
}

TEST(DocLinks, FilesThatAreThereMayBeNamed) {
  EXPECT_EQ(count("see [there](there.md) and [errors](../base/error.h)."), 0U);
  EXPECT_EQ(count("[a part](there.md#part), [a title](there.md \"title\")"), 0U);
  EXPECT_EQ(count("[there]: there.md\n"), 0U);
}

TEST(DocLinks, LinksThatLeadNowhereAreFound) {
  EXPECT_EQ(count("[gone](gone.md)"), 1U);
  EXPECT_EQ(count("[gone](gone.md#part) [gone](../base/gone.h) ![gone](gone.png)"), 3U);
  EXPECT_EQ(count("[errors](base/error.h)"), 1U);
  EXPECT_EQ(count("[gone]: gone.md\n"), 1U);
  EXPECT_EQ(count("[nothing]()"), 1U);
}

TEST(DocLinks, PathsOfAMachineAndOutsideTheTreeAreNot) {
  EXPECT_EQ(count("[hosts](/etc/hosts)"), 1U);
  EXPECT_EQ(count("[outside](../../there.md)"), 1U);
}

TEST(DocLinks, OtherSitesAnchorsAndCodeAreNotLookedAt) {
  EXPECT_EQ(count("[site](https://example.org/a.md) [mail](mailto:a@example.org)"), 0U);
  EXPECT_EQ(count("[above](#part)"), 0U);
  EXPECT_EQ(count("`operator[](gone)` and\n    [code](gone.md)\n"), 0U);
  EXPECT_EQ(count("```\n[code](gone.md)\n```\n[gone](gone.md)\n"), 1U);
}

TEST(DocLinks, TheLineIsNamed) {
  const Violations found =
      check_links("README.md", "a\n\n[gone](gone.md)\n", [](const std::string&) { return false; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].path, "README.md");
  EXPECT_EQ(found[0].line, 3);
}

TEST(DocLinks, TheTreeKeepsIt) {
  const std::vector<SourceFile> documents = read_files(".md");
  EXPECT_TRUE(std::any_of(documents.begin(), documents.end(),
                          [](const SourceFile& file) { return file.path == "README.md"; }));
  Violations found;
  for (const SourceFile& file : documents) {
    for (Violation& violation : check_links(file.path, file.text, [](const std::string& path) {
           return std::filesystem::exists(std::filesystem::path(TERRACE_SOURCE_DIR) / path);
         })) {
      found.push_back(std::move(violation));
    }
  }
  EXPECT_TRUE(found.empty()) << describe(found);
}

}  // namespace
}  // namespace terrace::tidy
