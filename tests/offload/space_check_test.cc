#include "offload/space_check.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/error.h"

namespace terrace {
namespace {

TEST(FreeSpace, CountsAFileSystemOnce) {
  const std::array<std::string, 2> twice = {"/proc", "/proc/self"};
  EXPECT_EQ(free_space(twice), 0U);
  const std::string here = ::testing::TempDir();
  const std::array<std::string, 2> both = {here, here};
  const auto once = static_cast<double>(free_space(std::span(both).first(1)));
  EXPECT_GT(once, 0);
  EXPECT_LT(static_cast<double>(free_space(both)), 1.5 * once);  // others write meanwhile
}

TEST(FreeSpace, OfNoDirectoryIsAnError) {
  const std::array<std::string, 1> none = {"/nowhere/at/all"};
  EXPECT_THROW(free_space(none), IoError);
}

}  // namespace
}  // namespace terrace
