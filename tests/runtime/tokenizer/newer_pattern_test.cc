#include "runtime/tokenizer/newer_pattern.h"

#include <gtest/gtest.h>

#include "runtime/tokenizer/regex_finder.h"

namespace terrace {
namespace {

// Returns the matches of a pattern, with bars between them.
std::string matches_of(const std::string& pattern, const std::string& text) {
  std::string found;
  make_regex_finder(pattern, "test")->find_all(text, [&](PatternFinder::Span span) {
    found += text.substr(span.begin, span.end - span.begin) + "|";
  });
  return found;
}

// U+1FA77, a heart, is a symbol since Unicode 15.
constexpr const char* kText = "a\U0001fa77b";

TEST(NewerPattern, KnowsSymbolsOfUnicode15) {
  EXPECT_EQ(matches_of(R"(\p{S}+)", kText), "\U0001fa77|");
  EXPECT_EQ(matches_of(R"(\pS)", kText), "\U0001fa77|");
  EXPECT_EQ(matches_of(R"(\p{So})", kText), "\U0001fa77|");
  EXPECT_EQ(matches_of(R"(\P{S}+)", kText), "a|b|");
  EXPECT_EQ(matches_of(R"([a\p{P}\p{S}]+)", kText), "a\U0001fa77|");
  EXPECT_EQ(matches_of(R"([^\p{S}]+)", kText), "a|b|");
  EXPECT_EQ(matches_of(R"([]\p{S}]+)", "]\U0001fa77[]"), "]\U0001fa77|]|");
  // U+31350 is an ideograph since Unicode 15.
  EXPECT_EQ(matches_of(R"(\p{L}+)", "x\U00031350y"), "x\U00031350y|");
}

TEST(NewerPattern, TakesUnicodesWhiteSpace) {
  EXPECT_EQ(matches_of(R"(\s+)", "a \u00a0\u180e\u3000b"), " \u00a0|\u3000|");
  EXPECT_EQ(matches_of(R"(\S+)", "a \u180e b"), "a|\u180e|b|");
  EXPECT_EQ(matches_of(R"([^\s]+)", "a \u180e b"), "a|\u180e|b|");
}

TEST(NewerPattern, LeavesOtherPatternsAsTheyAre) {
  for (const char* const pattern :
       {"", "a|b", R"(\\p{S})", R"([[:alpha:]\]x]+)", R"([\P{L}])", R"(\p{Han}+)", R"(\p)"}) {
    EXPECT_EQ(with_newer_categories(pattern), pattern);
  }
}

TEST(NewerPattern, KnowsWhichClassesStayOld) {
  for (const char* const pattern :
       {R"(\w+)", R"([\P{L}])", R"([\S])", R"([[:alpha:]])", R"(\p{Han})"}) {
    EXPECT_TRUE(has_older_classes(pattern)) << pattern;
  }
  for (const char* const pattern : {R"(\p{L}+)", R"([^\r\n\p{Lu}]?)", R"(\\w)", R"(\s+)"}) {
    EXPECT_FALSE(has_older_classes(pattern)) << pattern;
  }
}

}  // namespace
}  // namespace terrace
