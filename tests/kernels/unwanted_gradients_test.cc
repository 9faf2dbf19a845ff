#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/host_tensor.h"
#include "tests/kernels/row_bits.h"
#include "tests/kernels/shared_kernels.h"

// Where the gradient of a frozen matrix is not wanted, an op gives the other gradients to the last
// bit, and does not ask for the inputs and workspace that the unwanted gradient needs.
namespace terrace::test {
namespace {

class UnwantedGradients : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  UnwantedGradients() : random_(7), workers_(2) {}

  const KernelTable& kernels() const {
    switch (std::get<0>(GetParam())) {
      case 0:
        return reference_kernels();
      case 1:
        return cpu_kernels();
      default:
        return shared_kernels();
    }
  }
  DType type() const { return std::get<1>(GetParam()); }

  // Runs an op of the table with exactly the workspace that it asks for.
  template <typename Op>
  void run(void (*kernel)(const KernelContext&, const Op&), std::size_t workspace_bytes,
           const Op& op) {
    std::vector<std::byte> workspace(workspace_bytes + 64);
    KernelContext context;
    context.workers = &workers_;
    const auto misaligned = reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
    context.workspace =
        std::span(workspace).subspan(misaligned == 0 ? 0 : 64 - misaligned, workspace_bytes);
    kernel(context, op);
  }

  HostTensor random(Shape shape) { return HostTensor::random(type(), shape, random_); }
  HostTensor sums(Shape shape) { return HostTensor::random(DType::kF32, shape, random_); }

  static bool is_same(const TensorView& a, const TensorView& b) {
    return std::memcmp(a.data, b.data, a.size_bytes()) == 0;
  }

  Random random_;
  WorkerArena workers_;
};

TEST_P(UnwantedGradients, OfAProductLeaveThatOfItsBias) {
  HostTensor dy = random(shape(37, 75));
  HostTensor x = random(shape(37, 20));
  for (const GradientMode mode : {GradientMode::kAssign, GradientMode::kAccumulate}) {
    HostTensor dweight = sums(shape(75, 20));
    HostTensor dbias = sums(shape(75));
    HostTensor alone = dbias;
    MatmulBackwardWeight op{dy.view(), x.view(), dweight.view(), dbias.view(), mode};
    run(kernels().matmul_backward_weight, kernels().matmul_backward_weight_workspace(op, 2), op);
    op.x.data = nullptr;
    op.dweight.data = nullptr;
    op.dbias = alone.view();
    run(kernels().matmul_backward_weight, kernels().matmul_backward_weight_workspace(op, 2), op);
    EXPECT_TRUE(is_same(alone.view(), dbias.view()));
  }
}

// Computes the gradient of some rows of the weight, from some columns of dy.
TEST_P(UnwantedGradients, OfOtherRowsLeaveThoseOfAPart) {
  HostTensor dy = random(shape(37, 75));
  HostTensor x = random(shape(37, 20));
  HostTensor dweight = sums(shape(75, 20));
  HostTensor dbias = sums(shape(75));
  MatmulBackwardWeight op{dy.view(), x.view(), dweight.view(), dbias.view()};
  run(kernels().matmul_backward_weight, kernels().matmul_backward_weight_workspace(op, 2), op);
  constexpr std::int64_t kFirst = 11;
  HostTensor part = sums(shape(32, 20));
  HostTensor bias_part = sums(shape(32));
  op.dy = view(dy.view().data + kFirst * size_of(type()), type(), 37, 32);
  op.dy_stride = 75;
  op.dweight = part.view();
  op.dbias = bias_part.view();
  run(kernels().matmul_backward_weight, kernels().matmul_backward_weight_workspace(op, 2), op);
  const float* const rows = dweight.view().as<float>() + kFirst * 20;
  if (rows_have_bits_of_whole(type())) {
    EXPECT_EQ(std::memcmp(part.view().data, rows, part.view().size_bytes()), 0);
  }
  // 37 products of numbers below 1 in size, each sum rounded to half of a last place.
  constexpr float kBound = 37 * 37 * 0x1.0p-25F;
  for (std::int64_t i = 0; i < std::int64_t{32} * 20; ++i) {
    EXPECT_NEAR(part.view().as<float>()[i], rows[i], kBound) << i;
  }
  EXPECT_EQ(std::memcmp(bias_part.view().data, dbias.view().as<float>() + kFirst,
                        bias_part.view().size_bytes()),
            0);
}

TEST_P(UnwantedGradients, OfTheHeadLeaveThatOfItsInput) {
  HostTensor h = random(shape(41, 40));
  HostTensor weight = random(shape(104, 40));
  HostTensor target = HostTensor::random_indices(shape(41), random_, 104);
  HostTensor dh = random(shape(41, 40));
  HostTensor alone = dh;
  HostTensor dweight = sums(shape(104, 40));
  double loss = 0;
  double loss_alone = 1;
  HeadLoss op;
  op.h = h.view();
  op.weight = weight.view();
  op.target = target.view();
  op.dh = dh.view();
  op.dweight = dweight.view();
  op.loss_sum = &loss;
  run(kernels().head_loss, kernels().head_loss_workspace(op, 2), op);
  op.dh = alone.view();
  op.dweight = {};
  op.loss_sum = &loss_alone;
  run(kernels().head_loss, kernels().head_loss_workspace(op, 2), op);
  EXPECT_EQ(loss, loss_alone);
  EXPECT_TRUE(is_same(alone.view(), dh.view()));
}

TEST_P(UnwantedGradients, OfAPartOfTheHeadLeaveThatOfItsInput) {
  HostTensor h = random(shape(37, 100));
  HostTensor weight = random(shape(75, 100));
  HostTensor target = HostTensor::random_indices(shape(37), random_, 75);
  HostTensor part_sums = sums(shape(1, 37, kLogitSums));
  HeadSums first;
  first.h = h.view();
  first.weight = weight.view();
  first.target = target.view();
  first.sums = part_sums.view();
  run(kernels().head_sums, kernels().head_sums_workspace(first, 2), first);
  HostTensor dh = random(shape(37, 100));
  HostTensor alone = dh;
  HostTensor dweight = sums(shape(75, 100));
  double loss = 0;
  HeadPartLoss op;
  op.h = h.view();
  op.weight = weight.view();
  op.target = target.view();
  op.sums = part_sums.view();
  op.dh = dh.view();
  op.dweight = dweight.view();
  op.loss_sum = &loss;
  run(kernels().head_part_loss, kernels().head_part_loss_workspace(op, 2), op);
  op.dh = alone.view();
  op.dweight = {};
  run(kernels().head_part_loss, kernels().head_part_loss_workspace(op, 2), op);
  EXPECT_TRUE(is_same(alone.view(), dh.view()));
}

TEST_P(UnwantedGradients, OfTheTokensLeaveThatOfThePositions) {
  HostTensor tokens = HostTensor::random_indices(shape(24), random_, 50);
  HostTensor dh = random(shape(24, 30));
  HostTensor dwte = sums(shape(50, 30));
  HostTensor dwpe = sums(shape(12, 30));
  HostTensor alone = dwpe;
  const std::vector<TensorView> names = {tokens.view()};
  const std::vector<TensorView> gradients = {dh.view()};
  EmbeddingBackward op;
  op.tokens = names;
  op.dh = gradients;
  op.dwte = dwte.view();
  op.dwpe = dwpe.view();
  op.sequence = 12;
  const std::size_t workspace = kernels().embedding_backward_workspace(24, 1, 50, 30, 2);
  run(kernels().embedding_backward, workspace, op);
  op.dwte.data = nullptr;
  op.dwpe = alone.view();
  run(kernels().embedding_backward, workspace, op);
  EXPECT_TRUE(is_same(alone.view(), dwpe.view()));
}

INSTANTIATE_TEST_SUITE_P(Tables, UnwantedGradients,
                         testing::Combine(testing::Values(0, 1, 2),
                                          testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace terrace::test
