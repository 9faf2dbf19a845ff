#include <gtest/gtest.h>

#include "tests/e2e/switch_combinations.h"

namespace terrace {
namespace {

class SwitchBitsLong : public testing::TestWithParam<std::string> {};

TEST_P(SwitchBitsLong, RandomSettingsGiveTheBitsOfThePlainRun) {
  constexpr std::uint64_t kSeed = 20;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const TinyTraining training(GetParam() == "gpt2" ? gpt2_config()
                                                   : llama_config(3, 32, GetParam() == "tied"));
  for (const std::string precision : {"bf16", "fp32"}) {
    training.train(precision,
                   {"--precision", precision, "--max-steps", "6", "--validation-fraction", "0"});
  }
  int number = 0;
  for (const SwitchCombination& combination : random_combinations(kSeed, 200)) {
    expect_bits_of(training, combination, "run" + std::to_string(number++), combination.precision);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SwitchBitsLong, testing::Values("tied", "untied", "gpt2"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace terrace
