#include "kernels/cpu/cpu_matmul.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cpu/cpu_gemm_tiles.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"

namespace terrace {
namespace {

// Columns that one task of the bias gradient sums, and rows that one leaf of its tree adds in
// order.
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

GemmShape shape_of(const MatmulBackwardWeight& op) {
  const std::int64_t n = op.dweight.shape[0];
  const std::int64_t k = op.dweight.shape[1];
  return {.m = n,
          .n = k,
          .k = op.x.elements() / k,
          .a_stride = n,
          .b_stride = k,
          .c_stride = k,
          .input = op.x.dtype,
          .output = DType::kF32,
          .a_transposed = true};
}

// Runs all tiles at their places in c, with scratch for each worker from the start of the
// workspace.
void run_tiles(const KernelContext& context, const GemmTiles& tiles, const GemmOperands& whole) {
  context.workers->parallel_for(tiles.count(), [&](std::int64_t index, int worker) {
    GemmOperands operands = whole;
    operands.scratch = worker_share(context, 0, worker);
    tiles.run(index, operands);
  });
}

// Bytes of a worker's own tile of a weight gradient; oneDNN's scratch follows it.
std::size_t tile_bytes(const GemmTiles& tiles) {
  WorkspaceLayout layout;
  layout.add(static_cast<std::size_t>(tiles.tile_elements()) * sizeof(float));
  return layout.total_bytes();
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
        .stride = n,
        .source = op.dy.data + static_cast<std::size_t>(first) * size_of(op.dy.dtype),
        .dtype = op.dy.dtype,
        .sums = sums.data()};
    sum_rows(part);
    store_gradient(
        {.target = dbias + first, .tile = sums.data(), .rows = 1, .columns = part.columns},
        op.mode);
  });
}

}  // namespace

void cpu_matmul_forward(const KernelContext& context, const MatmulForward& op) {
  const GemmShape shape = shape_of(op);
  TERRACE_CHECK_EQ(op.y.elements(), shape.m * shape.n);
  TERRACE_CHECK(op.x.dtype == shape.input);
  run_tiles(context, GemmTiles(shape),
            {.a = op.x.data, .b = op.weight.data, .c = op.y.data, .bias = op.bias.data});
}

void cpu_matmul_backward_input(const KernelContext& context, const MatmulBackwardInput& op) {
  const GemmShape shape = shape_of(op);
  TERRACE_CHECK_EQ(op.dx.elements(), shape.m * shape.n);
  TERRACE_CHECK(op.dy.dtype == shape.input);
  run_tiles(context, GemmTiles(shape), {.a = op.dy.data, .b = op.weight.data, .c = op.dx.data});
}

void cpu_matmul_backward_weight(const KernelContext& context, const MatmulBackwardWeight& op) {
  const GemmShape shape = shape_of(op);
  TERRACE_CHECK_EQ(op.dy.elements(), shape.m * shape.k);
  TERRACE_CHECK(op.dy.dtype == shape.input);
  const GemmTiles tiles = GemmTiles::apart(shape);
  const std::size_t scratch_offset = tile_bytes(tiles);
  float* dweight = op.dweight.as<float>();
  context.workers->parallel_for(tiles.count(), [&](std::int64_t index, int worker) {
    const auto share = worker_share(context, 0, worker);
    float* sums = region_at<float>(share, 0, tiles.tile_elements());
    tiles.run_apart(index, {.a = op.dy.data,
                            .b = op.x.data,
                            .c = share.data(),
                            .scratch = share.subspan(scratch_offset)});
    const GemmTile tile = tiles.tile(index);
    store_gradient({.target = dweight + tile.row * shape.n + tile.column,
                    .target_stride = shape.n,
                    .tile = sums,
                    .tile_stride = tiles.tile_columns(),
                    .rows = tile.rows,
                    .columns = tile.columns},
                   op.mode);
  });
  if (!op.dbias.empty()) bias_gradient(context, op);
}

std::size_t cpu_matmul_forward_workspace(const MatmulForward& op, int workers) {
  // A bias changes what oneDNN needs; a shape that is sized without its bias gets enough for both.
  GemmShape shape = shape_of(op);
  shape.bias_dtype = op.bias.empty() ? op.y.dtype : op.bias.dtype;
  shape.has_bias = false;
  const std::size_t plain_bytes = GemmTiles(shape).scratch_bytes();
  shape.has_bias = true;
  return std::max(plain_bytes, GemmTiles(shape).scratch_bytes()) *
         static_cast<std::size_t>(workers);
}

std::size_t cpu_matmul_backward_input_workspace(const MatmulBackwardInput& op, int workers) {
  return GemmTiles(shape_of(op)).scratch_bytes() * static_cast<std::size_t>(workers);
}

std::size_t cpu_matmul_backward_weight_workspace(const MatmulBackwardWeight& op, int workers) {
  const GemmTiles tiles = GemmTiles::apart(shape_of(op));
  return (tile_bytes(tiles) + tiles.scratch_bytes()) * static_cast<std::size_t>(workers);
}

}  // namespace terrace
