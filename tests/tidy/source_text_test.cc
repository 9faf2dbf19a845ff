#include "tests/tidy/source_text.h"

#include <gtest/gtest.h>

namespace terrace::tidy {
namespace {

TEST(SourceText, BlanksCommentsAndKeepsLines) {
  EXPECT_EQ(blank_comments("a // b\nc /* d\ne */ f\n"), "a     \nc     \n     f\n");
}

TEST(SourceText, ACommentInAStringIsNoComment) {
  EXPECT_EQ(blank_comments("f(\"// no\"); // yes"), "f(\"// no\");       ");
}

TEST(SourceText, BlanksLiterals) {
  EXPECT_EQ(blank_comments_and_literals("f(\"a{\\\"b\", '{', '\\'');"), "f(\"     \", ' ', '  ');");
}

TEST(SourceText, BlanksRawStringsOverLines) {
  EXPECT_EQ(blank_comments_and_literals("x = R\"(a\n\"}{)\" + y;"), "x = R\"  \n    \" + y;");
  EXPECT_EQ(blank_comments_and_literals("x = R\"q()\" {)q\" + y;"), "x = R\"        \" + y;");
}

TEST(SourceText, DigitSeparatorsAreNoCharacters) {
  EXPECT_EQ(blank_comments_and_literals("n = 1'000'000; c = 'x';"), "n = 1'000'000; c = ' ';");
}

TEST(SourceText, BlanksDirectivesWithTheirContinuation) {
  EXPECT_EQ(blank_directives("a\n#define X { \\\n  y\nb\n"), "a\n             \n   \nb\n");
}

TEST(SourceText, WordsAreWhole) {
  EXPECT_TRUE(has_word("call assert(x)", "assert"));
  EXPECT_FALSE(has_word("static_assert(x)", "assert"));
  EXPECT_FALSE(has_word("asserted", "assert"));
  EXPECT_TRUE(has_word("asserted assert", "assert"));
}

TEST(SourceText, SplitsLinesWithAndWithoutALastNewline) {
  EXPECT_EQ(split_lines("a\n\nb").size(), 3U);
  EXPECT_EQ(split_lines("a\n\nb\n").size(), 3U);
  EXPECT_TRUE(split_lines("").empty());
}

}  // namespace
}  // namespace terrace::tidy
