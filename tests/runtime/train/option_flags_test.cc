#include "runtime/train/option_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

bool is_flag(const std::string& word) {
  for (const TrainFlag& flag : train_flags()) {
    if (word == "--" + std::string(flag.spec.name)) return true;
  }
  return false;
}

// Messages name flags that there are.
TEST(OptionFlags, AreFlagsOfTheProgram) {
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    const auto option = static_cast<Option>(i);
    std::istringstream words{std::string(flag_of_option(option))};
    int flags = 0;
    for (std::string word; words >> word;) {
      if (!word.starts_with("--")) continue;
      ++flags;
      EXPECT_TRUE(is_flag(word)) << word;
    }
    EXPECT_GE(flags, 1) << flag_of_option(option);
    EXPECT_THAT(std::string(field_of_option(option)), testing::Not(testing::HasSubstr("--")));
  }
}

}  // namespace
}  // namespace terrace
