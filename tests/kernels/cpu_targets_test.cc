#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/op_case.h"
#include "tests/sanitized.h"

// The Highway kernels on every instruction set that is compiled in and that this processor has, not
// only on the best one.
namespace terrace::test {
namespace {

std::vector<HostTensor> run_on(std::int64_t target, const OpCase& op_case, GradientMode mode) {
  const OnTarget on_target(target);
  RunOptions options;
  options.workers = 2;
  options.mode = mode;
  return run_case(cpu_kernels(), op_case, false, options);
}

// Sums and single roundings have the same bits whatever the vector width.
void expect_same_on_every_target(const std::vector<OpCase>& cases) {
  const std::vector<std::int64_t> targets = usable_targets();
  for (const OpCase& op_case : cases) {
    SCOPED_TRACE(op_case.name);
    const auto want = run_on(targets[0], op_case, GradientMode::kAssign);
    for (const std::int64_t target : targets) {
      SCOPED_TRACE(hwy::TargetName(target));
      const auto got = run_on(target, op_case, GradientMode::kAssign);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(want[i].bytes(), got[i].bytes())) << "output " << i;
      }
    }
  }
}

class CpuTargets : public testing::TestWithParam<DType> {};

TEST_P(CpuTargets, NormsHaveTheSameBits) { expect_same_on_every_target(norm_cases(GetParam())); }
TEST_P(CpuTargets, RopeHasTheSameBits) { expect_same_on_every_target(rope_cases(GetParam())); }
TEST_P(CpuTargets, ElementwiseOpsHaveTheSameBits) {
  expect_same_on_every_target(elementwise_cases(GetParam()));
}
TEST_P(CpuTargets, WireOpsHaveTheSameBits) { expect_same_on_every_target(wire_cases(GetParam())); }
TEST_P(CpuTargets, EmbeddingsHaveTheSameBits) {
  expect_same_on_every_target(embedding_cases(GetParam()));
}

// With a fused multiplication and addition the last bits differ between instruction sets, so each
// of these cases is held to its bound.
void expect_conforms_on_every_target(const std::vector<OpCase>& cases) {
  for (const std::int64_t target : usable_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnTarget on_target(target);
    for (const OpCase& op_case : cases) {
      SCOPED_TRACE(op_case.name);
      expect_conforms(cpu_kernels(), op_case);
    }
  }
}

TEST_P(CpuTargets, ActivationsConform) {
  expect_conforms_on_every_target(activation_cases(GetParam()));
}
TEST_P(CpuTargets, MatricesConform) { expect_conforms_on_every_target(matmul_cases(GetParam())); }
TEST_P(CpuTargets, ExpertsConform) { expect_conforms_on_every_target(expert_cases(GetParam())); }
TEST_P(CpuTargets, AttentionConforms) {
  expect_conforms_on_every_target(attention_cases(GetParam()));
}
// A long sequence differs only in its panels, which are the same for every instruction set.
TEST_P(CpuTargets, LongAttentionConformsOnTheBest) {
  for (const OpCase& op_case : long_attention_cases(GetParam())) {
    SCOPED_TRACE(op_case.name);
    expect_conforms(cpu_kernels(), op_case);
  }
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, CpuTargets,
                         testing::ValuesIn(fewer_if_sanitized<DType>({DType::kF32, DType::kBF16},
                                                                     {DType::kBF16})),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
