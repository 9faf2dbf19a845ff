#include "runtime/train/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace terrace {
namespace {

// Returns the text that is shown after each piece, and at the end.
std::vector<std::string> shown(const std::vector<std::string>& stops,
                               const std::vector<std::string>& pieces) {
  TextStream stream(stops);
  std::vector<std::string> shown;
  for (const std::string& piece : pieces) shown.push_back(stream.add(piece));
  shown.push_back(stream.finish());
  return shown;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, HoldsNothingBackWithoutAReason) {
  EXPECT_EQ(shown({}, {"a", "bc", "", "d"}), (Pieces{"a", "bc", "", "d", ""}));
  EXPECT_EQ(shown({"xyz"}, {"a", "bc"}), (Pieces{"a", "bc", ""}));
}

TEST(TextStream, EndsBeforeAStopTextOfSeveralPieces) {
  EXPECT_EQ(shown({"END"}, {"one E", "N", "D two", "three"}), (Pieces{"one ", "", "", "", ""}));
  // The beginning of a stop text that does not go on is shown, except for a part that may begin
  // another one.
  EXPECT_EQ(shown({"END"}, {"E", "NE", "ND"}), (Pieces{"", "EN", "", ""}));
  EXPECT_EQ(shown({"END"}, {"EN"}), (Pieces{"", "EN"}));
  EXPECT_EQ(shown({"aab"}, {"aa", "a", "b"}), (Pieces{"", "a", "", ""}));
}

// The result is the same however the text is cut.
TEST(TextStream, TheStopTextThatIsCompleteFirstCounts) {
  for (const Pieces& pieces : {Pieces{"xabcd"}, Pieces{"x", "a", "b", "c", "d"}}) {
    std::string text;
    for (const std::string& piece : shown({"abcd", "bc"}, pieces)) text += piece;
    EXPECT_EQ(text, "xa");
  }
  std::string text;
  for (const std::string& piece : shown({"bc", "abc"}, {"xabc"})) text += piece;
  EXPECT_EQ(text, "x");
}

TEST(TextStream, ShowsWholeCodePoints) {
  EXPECT_EQ(shown({}, {"a\xc3", "\xa4\xe2", "\x82", "\xac", "\xf0\x9f\x99", "\x82."}),
            (Pieces{"a", "\xc3\xa4", "", "\xe2\x82\xac", "", "\xf0\x9f\x99\x82.", ""}));
  // A byte that is not UTF-8 does not wait for more bytes. The rest at the end is shown.
  EXPECT_EQ(shown({}, {"\x80", "\xc3", "a", "\xe2\x82"}), (Pieces{"\x80", "",
                                                                  "\xc3"
                                                                  "a",
                                                                  "", "\xe2\x82"}));
}

// The first byte of the stop text ends a code point that begins before it.
TEST(TextStream, HoldsBackCodePointsBeforeABegunStopText) {
  EXPECT_EQ(shown({"\xac!"}, {"\xe2\x82", "\xac", "?"}), (Pieces{"", "", "\xe2\x82\xac?", ""}));
}

TEST(TextStream, TellsThatItHasStopped) {
  TextStream stream({"b"});
  stream.add("a");
  EXPECT_FALSE(stream.is_stopped());
  stream.add("b");
  EXPECT_TRUE(stream.is_stopped());
}

}  // namespace
}  // namespace terrace
