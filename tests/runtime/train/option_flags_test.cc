#include "runtime/train/option_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "memory/state_class.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

bool is_flag(const std::string& word) {
  for (const TrainFlag& flag : train_flags()) {
    if (word == "--" + std::string(flag.spec.name)) return true;
  }
  return false;
}

// Messages may only name flags that exist.
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

// Every class of state is at its own index in the table, and no two classes share an account or a
// flag.
TEST(OptionFlags, PlaceEveryState) {
  std::set<Account> accounts;
  std::set<std::string_view> flags;
  for (std::size_t i = 0; i < kStateClassCount; ++i) {
    const auto state = static_cast<StateClass>(i);
    EXPECT_EQ(info_of(state).state, state);
    EXPECT_TRUE(accounts.insert(info_of(state).account).second) << info_of(state).name;
    EXPECT_TRUE(flags.insert(place_flag(state)).second) << place_flag(state);
    EXPECT_TRUE(is_flag("--" + std::string(place_flag(state)))) << place_flag(state);
  }
}

}  // namespace
}  // namespace terrace
