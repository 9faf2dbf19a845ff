#include "tests/kernels/shared_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "kernels/shared/map.h"
#include "tests/kernels/op_case.h"

// The kernels of the GPU, run on the host: the suite of kernel_conformance_test.cc, in memory that
// begins one element past a boundary, and again on boundaries, with the same bits.
namespace terrace::test {
namespace {

class SharedKernels : public testing::TestWithParam<DType> {
 protected:
  static void expect_all(const std::vector<OpCase>& cases) {
    for (const OpCase& op_case : cases) {
      expect_conforms(shared_kernels(), op_case);
      expect_same_on_boundary(shared_kernels(), op_case);
    }
  }
};

TEST_P(SharedKernels, Matmul) { expect_all(matmul_cases(GetParam())); }
TEST_P(SharedKernels, Norm) { expect_all(norm_cases(GetParam())); }
TEST_P(SharedKernels, Rope) { expect_all(rope_cases(GetParam())); }
TEST_P(SharedKernels, Activation) { expect_all(activation_cases(GetParam())); }
TEST_P(SharedKernels, Elementwise) { expect_all(elementwise_cases(GetParam())); }
TEST_P(SharedKernels, Embedding) { expect_all(embedding_cases(GetParam())); }

TEST_P(SharedKernels, HeadLoss) {
  std::vector<OpCase> cases = head_loss_cases(GetParam());
  // Many rows are there for their chunks, which matter to the gradients.
  std::erase_if(cases, [](const OpCase& op) {
    return op.name.find("R=4133") != op.name.npos && op.name.find("wanted=1") == op.name.npos;
  });
  expect_all(cases);
}

// A longer sequence has more tiles, and none of another kind.
TEST_P(SharedKernels, Attention) { expect_all(attention_cases(GetParam())); }

TEST_P(SharedKernels, HeadPart) { expect_all(head_part_cases(GetParam())); }

TEST(SharedKernelsTest, HeadsThatAreTooWideAreRefusedWhenWorkspaceIsAsked) {
  AttentionForward op;
  op.shape = {.batch = 1, .sequence = 1, .heads = 1, .key_value_heads = 1, .head_width = 128};
  EXPECT_EQ(shared_kernels().attention_forward_workspace(op, 1), 0U);
  op.shape.head_width = 129;
  EXPECT_THROW(shared_kernels().attention_forward_workspace(op, 1), ConfigError);
}

TEST(SharedKernelsTest, RowsThatAreTooWideForNormsAreRefusedWhenWorkspaceIsAsked) {
  EXPECT_GT(shared_kernels().norm_backward_workspace(1, 32768, 1), 0U);
  EXPECT_THROW(shared_kernels().norm_backward_workspace(1, 32769, 1), ConfigError);
}

TEST(SharedKernelsTest, DivisorsDivide) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  for (const std::int64_t divisor :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{96}, std::int64_t{641},
        std::int64_t{65537}, kMost / 2 + 2, kMost - 1, kMost}) {
    for (const std::int64_t most : {kMost, kMost + 1}) {  // by a product, and by a division
      const shared::Divisor by(divisor, most);
      for (const std::int64_t near : {std::int64_t{0}, divisor, 2 * divisor, kMost / 2, kMost}) {
        for (std::int64_t n = std::max<std::int64_t>(near - 2, 0); n <= near + 2; ++n) {
          if (n > kMost) break;
          EXPECT_EQ(by.quotient(n), n / divisor) << n << " by " << divisor;
          EXPECT_EQ(by.remainder(n), n % divisor) << n << " by " << divisor;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, SharedKernels,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
