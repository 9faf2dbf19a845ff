#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <array>

namespace terrace {
namespace {

TEST(NearestName, DistanceCountsInsertionsRemovalsAndChanges) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2U);
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

TEST(NearestName, FirstOfTheNearestIsGiven) {
  constexpr auto kNames = std::to_array<std::string_view>({"seed", "data", "date"});
  EXPECT_EQ(nearest_name("dats", kNames), "data");
  EXPECT_EQ(nearest_name("sed", kNames), "seed");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace terrace
