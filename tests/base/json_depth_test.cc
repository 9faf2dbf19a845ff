#include "base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(JsonDepth, CountsBracketsWithinEachOther) {
  EXPECT_FALSE(nests_deeper("", 0));
  EXPECT_FALSE(nests_deeper("1", 0));
  EXPECT_TRUE(nests_deeper("[]", 0));
  EXPECT_FALSE(nests_deeper("[{}, [], {}]", 2));
  EXPECT_TRUE(nests_deeper(R"({"a": [[1]]})", 2));
  const auto nested = [](std::size_t levels) { return std::string(levels, '['); };
  EXPECT_FALSE(nests_deeper(nested(kJsonLevels)));
  EXPECT_TRUE(nests_deeper(nested(kJsonLevels + 1)));
}

TEST(JsonDepth, PassesOverStrings) {
  EXPECT_FALSE(nests_deeper(R"(["[[[[", "\"[[", "\\"])", 1));
  EXPECT_TRUE(nests_deeper(R"(["\\", []])", 1));
  EXPECT_FALSE(nests_deeper("[\"\\", 1));  // cut
}

}  // namespace
}  // namespace terrace
