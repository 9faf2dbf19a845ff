#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/op_case.h"

// The cases of attention's options would not pass with a kernel that ignores one.
namespace terrace::test {
namespace {

Values values_of(const std::vector<HostTensor>& tensors) {
  Values values;
  for (const HostTensor& tensor : tensors) values.push_back(tensor.values());
  return values;
}

bool is_within(const Values& got, const Values& want, const Values& bounds) {
  for (std::size_t k = 0; k < want.size(); ++k) {
    for (std::size_t i = 0; i < want[k].size(); ++i) {
      if (!(std::abs(got[k][i] - want[k][i]) <= bounds[k][i])) return false;
    }
  }
  return true;
}

class AttentionOptions : public testing::TestWithParam<DType> {};

TEST_P(AttentionOptions, AreSeenToBeIgnored) {
  const auto options = ignored_attention_options(GetParam());
  EXPECT_GE(options.size(), 18U);
  for (const IgnoredOption& option : options) {
    SCOPED_TRACE(option.given.name + " without " + option.option);
    std::vector<HostTensor> inputs;
    for (const HostTensor& input : option.given.inputs) inputs.push_back(input.widened());
    const Values want = values_of(run_case(reference_kernels(), option.given, true, {}));
    const Values bounds = option.given.bounds(values_of(inputs), want);
    EXPECT_TRUE(
        is_within(values_of(run_case(reference_kernels(), option.given, false, {})), want, bounds));
    EXPECT_FALSE(is_within(values_of(run_case(reference_kernels(), option.ignored, false, {})),
                           want, bounds));
  }
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, AttentionOptions,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
