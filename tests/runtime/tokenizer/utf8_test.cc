#include "runtime/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr const char* kSign = "\xEF\xBF\xBD";

std::string signs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kSign;
  return text;
}

// The result is the same as that of Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, InvalidBytesBecomeASignForEachBeginningOfASequence) {
  EXPECT_EQ(replace_invalid_utf8("\xFF"), signs(1));
  EXPECT_EQ(replace_invalid_utf8("a\xC3"), "a" + signs(1));
  EXPECT_EQ(replace_invalid_utf8("\xE4\xBD"), signs(1));
  EXPECT_EQ(replace_invalid_utf8("\xE4\xBD\x41"), signs(1) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), signs(3));      // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), signs(4));  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), signs(1));
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), signs(2));      // overlong
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\xAF"), signs(3));  // overlong
  EXPECT_EQ(replace_invalid_utf8("x\x80\x80y"), "x" + signs(2) + "y");
}

TEST(Utf8, ValidTextStays) {
  const std::string text = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80 and more than eight bytes";
  EXPECT_EQ(valid_utf8_prefix(text), text.size());
  EXPECT_EQ(replace_invalid_utf8(text), text);
  EXPECT_EQ(valid_utf8_prefix("eight bytes\xFF"), 11U);
}

TEST(Utf8, CodePointsAtTheEnds) {
  const std::string text = "\xF0\x9F\x98\x80z\xC3\xA9";
  EXPECT_EQ(first_code_point(text), 0x1F600);
  EXPECT_EQ(last_code_point(text), 0xE9);
  EXPECT_EQ(last_code_point("a\x80"), std::nullopt);
  EXPECT_EQ(first_code_point(""), std::nullopt);
  EXPECT_EQ(last_code_point(""), std::nullopt);
  EXPECT_EQ(code_point_before(text, text.size()).value, 0xE9U);
}

TEST(Utf8, AppendsWhatItReads) {
  for (const char32_t point : {0x41U, 0x7FFU, 0x800U, 0xFFFDU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    append_utf8(point, text);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
    EXPECT_EQ(code_point_at(text, 0).value, point);
    EXPECT_EQ(code_point_at(text, 0).size_bytes, text.size());
  }
}

}  // namespace
}  // namespace terrace
