#include "kernels/cpu/few_rows_product.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/row_products.h"

namespace terrace {
namespace {

// Columns of the result that one task computes, each a row of the weight.
constexpr std::int64_t kTaskColumns = 32;

std::int64_t bytes_of(DType type, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(size_of(type));
}

}  // namespace

bool is_of_few_rows(const MatrixProduct& product) {
  const GemmShape& shape = product.shape;
  return shape.m <= kFewRows && shape.b_transposed && !shape.a_transposed &&
         !product.gradient.has_value() && product.consumer == nullptr &&
         (shape.input == DType::kF32 || shape.input == DType::kBF16);
}

void few_rows_multiply(const KernelContext& context, const MatrixProduct& product) {
  TERRACE_CHECK(is_of_few_rows(product));
  const GemmShape& shape = product.shape;
  const std::int64_t tasks = (shape.n + kTaskColumns - 1) / kTaskColumns;
  const int workers =
      workers_of_bytes(context.workers->threads(), bytes_of(shape.input, shape.n * shape.k));
  context.workers->parallel_for(tasks, workers, [&](std::int64_t task, int) {
    const std::int64_t first = task * kTaskColumns;
    std::array<float, kFewRows * kTaskColumns> sums;
    const RowDots dots = {.dtype = shape.input,
                          .a = product.a,
                          .b = product.b + bytes_of(shape.input, first * shape.b_stride),
                          .a_stride = shape.a_stride,
                          .b_stride = shape.b_stride,
                          .a_rows = shape.m,
                          .b_rows = std::min(kTaskColumns, shape.n - first),
                          .depth = shape.k,
                          .sums = sums.data(),
                          .sums_stride = kTaskColumns};
    dot_rows(dots);
    ProductTarget target = {.data = product.c + bytes_of(shape.output, first),
                            .stride = shape.c_stride,
                            .dtype = shape.output,
                            .bias_dtype = shape.bias_dtype};
    if (shape.has_bias) target.bias = product.bias + bytes_of(shape.bias_dtype, first);
    store_product(
        {.data = sums.data(), .stride = kTaskColumns, .rows = shape.m, .columns = dots.b_rows},
        target);
  });
}

}  // namespace terrace
