#include "kernels/cpu/cpu_expert_products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/few_rows_product.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/parallel_blocks.h"

namespace terrace {
namespace {

std::int64_t width_of(const TensorView& matrix) { return matrix.elements() / matrix.shape[0]; }

std::size_t bytes_of(DType type, std::int64_t elements) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

// Returns R, the most rows that an expert can have.
std::int64_t rows_max(const ExpertRows& rows) { return rows.order.elements() / rows.per_row; }

// Returns the code that multiplies. It depends on shapes alone, not on how many rows an expert has.
ProductCode code_of(const MatrixProduct& product, std::int64_t rows_max) {
  MatrixProduct largest = product;
  largest.shape.m = rows_max;
  if (is_of_few_rows(largest)) return ProductCode::kFewRows;
  const ProductCode code = product_code(product.shape.input);
  return code == ProductCode::kOneDnn ? ProductCode::kVectors : code;
}

// The neighbouring sorted rows of one expert.
struct RowSpan {
  std::int64_t expert = 0;
  std::int64_t begin = 0;
  std::int64_t rows = 0;
};

// Calls body(RowSpan) for each expert in order.
template <typename Body>
void for_each_expert(const ExpertRows& rows, const Body& body) {
  const auto* const offsets = rows.offsets.as<const std::int32_t>();
  for (std::int64_t e = 0; e + 1 < rows.offsets.elements(); ++e) {
    TERRACE_CHECK_LE(offsets[e], offsets[e + 1]);
    const std::int64_t count = offsets[e + 1] - offsets[e];
    TERRACE_CHECK_LE(count, rows_max(rows));
    body(RowSpan{e, offsets[e], count});
  }
}

// The bytes of a side's rows where they have to be copied side by side; 0 for a sorted side.
std::size_t gathered_bytes(const ExpertRows& rows, const ExpertSide& side) {
  if (!side.is_by_row) return 0;
  return bytes_of(side.matrix.dtype, rows_max(rows) * width_of(side.matrix));
}

// Returns where an expert's rows of a side lie side by side; rows that lie apart are copied to
// `space` first.
const std::byte* rows_of(const KernelContext& context, const ExpertRows& rows,
                         const ExpertSide& side, const RowSpan& span, std::byte* space) {
  const std::size_t row_bytes = bytes_of(side.matrix.dtype, width_of(side.matrix));
  if (!side.is_by_row) return side.matrix.data + static_cast<std::size_t>(span.begin) * row_bytes;
  const auto* const slots = rows.order.as<const std::int32_t>() + span.begin;
  const auto block = static_cast<std::int64_t>(
      std::max<std::size_t>(1, static_cast<std::size_t>(kWorkerBytes) / row_bytes));
  for_each_block(context, span.rows, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::size_t>(slots[i] / rows.per_row);
      std::memcpy(space + static_cast<std::size_t>(i) * row_bytes,
                  side.matrix.data + row * row_bytes, row_bytes);
    }
  });
  return space;
}

// Returns the products of one expert with `rows` rows, without operands.
MatrixProduct product_of(const ExpertForward& op, std::int64_t rows) {
  const std::int64_t k = width_of(op.x.matrix);
  const std::int64_t n = width_of(op.y);
  MatrixProduct product;
  product.shape = {.m = rows,
                   .n = n,
                   .k = k,
                   .a_stride = k,
                   .b_stride = k,
                   .c_stride = n,
                   .input = op.weights.dtype,
                   .output = op.y.dtype,
                   .b_transposed = true};
  return product;
}

MatrixProduct product_of(const ExpertBackwardInput& op, std::int64_t rows) {
  const std::int64_t n = width_of(op.dy.matrix);
  const std::int64_t k = width_of(op.dx);
  MatrixProduct product;
  product.shape = {.m = rows,
                   .n = k,
                   .k = n,
                   .a_stride = n,
                   .b_stride = k,
                   .c_stride = k,
                   .input = op.weights.dtype,
                   .output = op.dx.dtype};
  return product;
}

MatrixProduct product_of(const ExpertBackwardWeight& op, std::int64_t rows) {
  const std::int64_t n = width_of(op.dy.matrix);
  const std::int64_t k = width_of(op.x.matrix);
  MatrixProduct product;
  product.shape = {.m = n,
                   .n = k,
                   .k = rows,
                   .a_stride = n,
                   .b_stride = k,
                   .c_stride = k,
                   .input = op.x.matrix.dtype,
                   .output = DType::kF32,
                   .a_transposed = true};
  product.gradient = op.mode;
  return product;
}

// Returns the most that a product needs, over all numbers of rows.
template <typename Op>
std::size_t most_workspace(const Op& op, int workers) {
  const std::int64_t most = rows_max(op.rows);
  std::size_t bytes = 0;
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    const MatrixProduct product = product_of(op, rows);
    bytes = std::max(bytes, multiply_workspace(product, workers, code_of(product, most)));
  }
  return bytes;
}

// Returns the context whose workspace begins at `offset` of this one's.
KernelContext behind(const KernelContext& context, std::size_t offset) {
  TERRACE_CHECK_LE(offset, context.workspace.size());
  KernelContext inner = context;
  inner.workspace = context.workspace.subspan(offset);
  return inner;
}

std::byte* weight_of(const StridedRows& weights, std::int64_t expert) {
  return weights.data + bytes_of(weights.dtype, expert * weights.stride);
}

// Multiplies the rows of each expert that has some, from one side with the expert's weight.
template <typename Op>
void multiply_rows(const KernelContext& context, const Op& op, const ExpertSide& side,
                   const TensorView& result) {
  TERRACE_CHECK_EQ(op.weights.rows, op.rows.offsets.elements() - 1);
  TERRACE_CHECK_EQ(op.weights.width, width_of(side.matrix) * width_of(result));
  TERRACE_CHECK(side.matrix.dtype == op.weights.dtype);
  WorkspaceLayout layout;
  layout.add(gathered_bytes(op.rows, side));
  const KernelContext inner = behind(context, layout.total_bytes());
  for_each_expert(op.rows, [&](const RowSpan& span) {
    if (span.rows == 0) return;
    MatrixProduct product = product_of(op, span.rows);
    product.a = rows_of(context, op.rows, side, span, context.workspace.data());
    product.b = weight_of(op.weights, span.expert);
    product.c = result.data + bytes_of(result.dtype, span.begin * width_of(result));
    multiply(inner, product, code_of(product, rows_max(op.rows)));
  });
}

}  // namespace

void cpu_expert_forward(const KernelContext& context, const ExpertForward& op) {
  multiply_rows(context, op, op.x, op.y);
}

void cpu_expert_backward_input(const KernelContext& context, const ExpertBackwardInput& op) {
  multiply_rows(context, op, op.dy, op.dx);
}

void cpu_expert_backward_weight(const KernelContext& context, const ExpertBackwardWeight& op) {
  TERRACE_CHECK_EQ(op.dweights.rows, op.rows.offsets.elements() - 1);
  TERRACE_CHECK_EQ(op.dweights.width, width_of(op.dy.matrix) * width_of(op.x.matrix));
  TERRACE_CHECK(op.dy.matrix.dtype == op.x.matrix.dtype);
  WorkspaceLayout layout;
  std::byte* const dy_space = context.workspace.data() + layout.add(gathered_bytes(op.rows, op.dy));
  std::byte* const x_space = context.workspace.data() + layout.add(gathered_bytes(op.rows, op.x));
  const KernelContext inner = behind(context, layout.total_bytes());
  for_each_expert(op.rows, [&](const RowSpan& span) {
    std::byte* const target = weight_of(op.dweights, span.expert);
    if (span.rows == 0) {  // 0 + 0; and to add 0 changes no sum
      if (op.mode == GradientMode::kAssign) {
        std::memset(target, 0, bytes_of(DType::kF32, op.dweights.width));
      }
      return;
    }
    MatrixProduct product = product_of(op, span.rows);
    product.a = rows_of(context, op.rows, op.dy, span, dy_space);
    product.b = rows_of(context, op.rows, op.x, span, x_space);
    product.c = target;
    multiply(inner, product, code_of(product, rows_max(op.rows)));
  });
}

std::size_t cpu_expert_forward_workspace(const ExpertForward& op, int workers) {
  WorkspaceLayout layout;
  layout.add(gathered_bytes(op.rows, op.x));
  layout.add(most_workspace(op, workers));
  return layout.total_bytes();
}

std::size_t cpu_expert_backward_input_workspace(const ExpertBackwardInput& op, int workers) {
  WorkspaceLayout layout;
  layout.add(gathered_bytes(op.rows, op.dy));
  layout.add(most_workspace(op, workers));
  return layout.total_bytes();
}

std::size_t cpu_expert_backward_weight_workspace(const ExpertBackwardWeight& op, int workers) {
  WorkspaceLayout layout;
  layout.add(gathered_bytes(op.rows, op.dy));
  layout.add(gathered_bytes(op.rows, op.x));
  layout.add(most_workspace(op, workers));
  return layout.total_bytes();
}

}  // namespace terrace
