#include "tests/kernels/shared_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/shared/head_loss.h"
#include "kernels/shared/map.h"
#include "tests/kernels/host_tensor.h"
#include "tests/kernels/op_case.h"
#include "tests/sanitized.h"

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
TEST_P(SharedKernels, Wire) { expect_all(wire_cases(GetParam())); }
TEST_P(SharedKernels, Embedding) { expect_all(embedding_cases(GetParam())); }

TEST_P(SharedKernels, HeadLoss) {
  std::vector<OpCase> cases = head_loss_cases(GetParam());
  // Cases with many rows test chunks, which matter only for gradients.
  std::erase_if(cases, [](const OpCase& op) {
    return op.name.find("R=4133") != op.name.npos && op.name.find("wanted=1") == op.name.npos;
  });
  expect_all(cases);
}

// Longer sequences are left out: they have more tiles, but no other kind of tile.
TEST_P(SharedKernels, Attention) { expect_all(attention_cases(GetParam())); }

TEST_P(SharedKernels, HeadPart) { expect_all(head_part_cases(GetParam())); }
TEST_P(SharedKernels, Experts) { expect_all(expert_cases(GetParam())); }

// A launcher that only records which products it is asked for.
class ProductList {
 public:
  explicit ProductList(std::size_t workspace_bytes)
      : memory_(new std::byte[workspace_bytes]), bytes_(workspace_bytes) {}

  template <int Threads, typename Kernel>
  void launch(std::string_view, const Kernel&, std::int64_t, std::size_t = 0) {}
  void copy(void*, const void*, std::size_t) {}
  void zero(void*, std::size_t) {}
  void product(const shared::Product& product) { products.push_back(product); }
  std::span<std::byte> workspace() const { return {memory_.get(), bytes_}; }

  std::vector<shared::Product> products;

 private:
  const std::unique_ptr<std::byte[]> memory_;  // never touched
  const std::size_t bytes_;
};

// Fast products load packs of 16 bytes from the beginning of a row to its end.
TEST(SharedKernelsTest, ProductsOfAHeadOfAnyVocabularyAreOfWholePacks) {
  for (const std::int64_t vocabulary : {50257, 50264, 151, 8, 7}) {
    HeadLoss op;
    const HostTensor h = HostTensor(DType::kBF16, shape(40, 16)).on_boundary();
    const HostTensor weight = HostTensor(DType::kBF16, shape(vocabulary, 16)).on_boundary();
    const HostTensor dweight = HostTensor(DType::kF32, shape(vocabulary, 16)).on_boundary();
    const HostTensor target(DType::kI32, shape(40));
    double loss = 0;
    op.h = op.dh = h.view();
    op.weight = weight.view();
    op.dweight = dweight.view();
    op.target = target.view();
    op.loss_sum = &loss;
    ProductList launcher(shared::head_loss_workspace(op));
    shared::head_loss(launcher, op);
    ASSERT_EQ(launcher.products.size(), 3U);
    for (const shared::Product& p : launcher.products) {
      EXPECT_GE(std::max({p.rows, p.cols, p.depth}), vocabulary);
      for (const std::int64_t size :
           {p.rows, p.cols, p.depth, p.a_row * p.a_depth, p.b_depth * p.b_col}) {
        EXPECT_EQ(size % 8, 0) << vocabulary;
      }
      for (const std::byte* operand : {p.a, p.b, static_cast<const std::byte*>(p.c)}) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(operand) % 16, 0U) << vocabulary;
      }
    }
  }
}

TEST(SharedKernelsTest, HeadsThatAreTooWideAreRefusedWhenWorkspaceIsAsked) {
  AttentionForward op;
  op.shape = {
      .batch = 1, .queries = 1, .keys = 1, .heads = 1, .key_value_heads = 1, .head_width = 256};
  EXPECT_EQ(shared_kernels().attention_forward_workspace(op, 1), 0U);
  op.shape.head_width = 257;
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
                         testing::ValuesIn(fewer_if_sanitized<DType>(
                             {DType::kF32, DType::kBF16, DType::kF16}, {DType::kBF16})),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
