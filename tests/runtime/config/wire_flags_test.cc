#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/config/train_config.h"

// The flags of the forms that numbers have between data-parallel ranks.
namespace terrace {
namespace {

using ::testing::HasSubstr;

TrainOptions parsed(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--model", "nano", "--data", "x", "--max-steps", "9"};
  flags.insert(flags.end(), more.begin(), more.end());
  return parse_train_options(flags);
}

std::string refusal(const std::vector<std::string>& more) {
  try {
    parsed(more);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(WireFlags, KeepErrorsWithInt4UnlessAsked) {
  EXPECT_FALSE(parsed({}).step.keeps_errors());
  EXPECT_FALSE(parsed({"--gradient-wire-dtype", "int8"}).step.keeps_errors());
  EXPECT_TRUE(parsed({"--gradient-wire-dtype", "int4"}).step.keeps_errors());
  EXPECT_TRUE(
      parsed({"--gradient-wire-dtype", "int8", "--error-feedback", "on"}).step.keeps_errors());
}

TEST(WireFlags, RefuseWhatHasNoEffect) {
  EXPECT_THAT(refusal({"--error-feedback", "on"}), HasSubstr("plain gradients lose nothing"));
  EXPECT_THAT(refusal({"--gradient-wire-dtype", "int4", "--error-feedback", "off"}),
              HasSubstr("4 bits lose too much"));
  EXPECT_THAT(refusal({"--gradient-wire-dtype", "int8", "--place-gradient-errors", "host"}),
              HasSubstr("--place-gradient-errors without error feedback"));
  EXPECT_THAT(refusal({"--parameter-wire-dtype", "int4"}), HasSubstr("--parameter-wire-dtype"));
}

TEST(WireFlags, ChangeTheComputationOfARunThatGoesOn) {
  const TrainOptions plain = parsed({});
  const TrainOptions coded = parsed({"--gradient-wire-dtype", "int4"});
  EXPECT_THAT(changed_keys(to_toml(plain), coded),
              testing::ElementsAre("gradient_wire_dtype \"plain\" -> \"int4\""));
}

}  // namespace
}  // namespace terrace
