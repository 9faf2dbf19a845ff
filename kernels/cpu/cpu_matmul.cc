#include "kernels/cpu/cpu_matmul.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/product_result.h"

namespace terrace {
namespace {

// The columns that one task of the bias gradient sums, and the rows that one leaf of its tree adds
// in order.
constexpr std::int64_t kBiasColumns = 128;
constexpr std::int64_t kBiasLeafRows = 32;

// The product y = x weight^T and its two gradients, with R, N and K from the weight (or its
// gradient).
GemmShape shape_of(const MatmulForward& op) {
  const std::int64_t n = op.weight.shape[0];
  const std::int64_t k = op.weight.shape[1];
  return {.m = op.x.elements() / k,
          .n = n,
          .k = k,
          .a_stride = k,
          .b_stride = k,
          .c_stride = n,
          .input = op.weight.dtype,
          .output = op.y.dtype,
          .bias_dtype = op.bias.dtype,
          .b_transposed = true,
          .has_bias = !op.bias.empty()};
}

GemmShape shape_of(const MatmulBackwardInput& op) {
  const std::int64_t n = op.weight.shape[0];
  const std::int64_t k = op.weight.shape[1];
  return {.m = op.dy.elements() / n,
          .n = k,
          .k = n,
          .a_stride = n,
          .b_stride = k,
          .c_stride = k,
          .input = op.weight.dtype,
          .output = op.dx.dtype};
}

std::int64_t stride_of(const MatmulBackwardWeight& op) {
  return op.dy_stride == 0 ? op.dweight.shape[0] : op.dy_stride;
}

GemmShape shape_of(const MatmulBackwardWeight& op) {
  const std::int64_t n = op.dweight.shape[0];
  const std::int64_t k = op.dweight.shape[1];
  return {.m = n,
          .n = k,
          .k = op.x.elements() / k,
          .a_stride = stride_of(op),
          .b_stride = k,
          .c_stride = k,
          .input = op.x.dtype,
          .output = DType::kF32,
          .a_transposed = true};
}

// Sums the rows of `part`, by halving down to leaves that add rows in order.
void sum_rows(const ColumnSums& part) {
  std::fill_n(part.sums, part.columns, 0.0F);
  if (part.rows <= kBiasLeafRows) {
    add_column_sums(part);
    return;
  }
  ColumnSums first = part;
  first.rows = part.rows / 2;
  sum_rows(first);
  std::array<float, kBiasColumns> sums;
  ColumnSums second = part;
  second.rows = part.rows - first.rows;
  second.source = static_cast<const std::byte*>(part.source) +
                  static_cast<std::size_t>(first.rows * part.stride) * size_of(part.dtype);
  second.sums = sums.data();
  sum_rows(second);
  add_row(sums.data(), part.columns, part.sums);
}

void bias_gradient(const KernelContext& context, const MatmulBackwardWeight& op) {
  const std::int64_t n = op.dweight.shape[0];
  float* dbias = op.dbias.as<float>();
  const std::int64_t tasks = (n + kBiasColumns - 1) / kBiasColumns;
  context.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t first = task * kBiasColumns;
    std::array<float, kBiasColumns> sums;
    const ColumnSums part{
        .rows = op.dy.elements() / n,
        .columns = std::min(kBiasColumns, n - first),
        .stride = stride_of(op),
        .source = op.dy.data + static_cast<std::size_t>(first) * size_of(op.dy.dtype),
        .dtype = op.dy.dtype,
        .sums = sums.data()};
    sum_rows(part);
    store_product({.data = sums.data(), .stride = kBiasColumns, .rows = 1, .columns = part.columns},
                  {.data = reinterpret_cast<std::byte*>(dbias + first), .gradient = op.mode});
  });
}

MatrixProduct product_of(const MatmulForward& op) {
  return {.shape = shape_of(op),
          .a = op.x.data,
          .b = op.weight.data,
          .c = op.y.data,
          .bias = op.bias.data};
}

MatrixProduct product_of(const MatmulBackwardInput& op) {
  return {.shape = shape_of(op), .a = op.dy.data, .b = op.weight.data, .c = op.dx.data};
}

MatrixProduct product_of(const MatmulBackwardWeight& op) {
  return {.shape = shape_of(op),
          .a = op.dy.data,
          .b = op.x.data,
          .c = op.dweight.data,
          .gradient = op.mode};
}

}  // namespace

void cpu_matmul_forward(const KernelContext& context, const MatmulForward& op) {
  const MatrixProduct product = product_of(op);
  TERRACE_CHECK_EQ(op.y.elements(), product.shape.m * product.shape.n);
  TERRACE_CHECK(op.x.dtype == product.shape.input);
  multiply(context, product);
}

void cpu_matmul_backward_input(const KernelContext& context, const MatmulBackwardInput& op) {
  const MatrixProduct product = product_of(op);
  TERRACE_CHECK_EQ(op.dx.elements(), product.shape.m * product.shape.n);
  TERRACE_CHECK(op.dy.dtype == product.shape.input);
  multiply(context, product);
}

void cpu_matmul_backward_weight(const KernelContext& context, const MatmulBackwardWeight& op) {
  const MatrixProduct product = product_of(op);
  TERRACE_CHECK_EQ(op.dy.elements(), product.shape.m * product.shape.k);
  TERRACE_CHECK(op.dy.dtype == product.shape.input);
  if (!op.dweight.empty()) multiply(context, product);
  if (!op.dbias.empty()) bias_gradient(context, op);
}

std::size_t cpu_matmul_forward_workspace(const MatmulForward& op, int workers) {
  // A bias changes how much memory oneDNN needs; a shape that is sized without its bias gets enough
  // for both.
  MatrixProduct product = product_of(op);
  product.shape.bias_dtype = op.bias.empty() ? op.y.dtype : op.bias.dtype;
  product.shape.has_bias = false;
  const std::size_t plain_bytes = multiply_workspace(product, workers);
  product.shape.has_bias = true;
  return std::max(plain_bytes, multiply_workspace(product, workers));
}

std::size_t cpu_matmul_backward_input_workspace(const MatmulBackwardInput& op, int workers) {
  return multiply_workspace(product_of(op), workers);
}

std::size_t cpu_matmul_backward_weight_workspace(const MatmulBackwardWeight& op, int workers) {
  return multiply_workspace(product_of(op), workers);
}

}  // namespace terrace
