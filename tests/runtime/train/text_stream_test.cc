#include "runtime/train/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace terrace {
namespace {

// Returns the texts that the stream shows: one after each piece, and one at the end.
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
  // If text begins like the stop text but then differs, the text held back so far is shown, except
  // for an end that may be the beginning of another stop text.
  EXPECT_EQ(shown({"END"}, {"E", "NE", "ND"}), (Pieces{"", "EN", "", ""}));
  EXPECT_EQ(shown({"END"}, {"EN"}), (Pieces{"", "EN"}));
  EXPECT_EQ(shown({"aab"}, {"aa", "a", "b"}), (Pieces{"", "a", "", ""}));
}

// The result does not depend on how the text is cut into pieces.
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
  // A byte that is not valid UTF-8 is shown without waiting for more bytes. Bytes that are left
  // over at the end are shown too.
  EXPECT_EQ(shown({}, {"\x80", "\xc3", "a", "\xe2\x82"}), (Pieces{"\x80", "",
                                                                  "\xc3"
                                                                  "a",
                                                                  "", "\xe2\x82"}));
}

// Here the first byte of the stop text is the last byte of a code point.
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
