#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/block.h"
#include "kernels/shared/elementwise.h"
#include "kernels/shared/join_columns.h"

// The three products of a linear layer, as calls of launcher.product().
namespace terrace::shared {

template <typename Launcher>
void matmul_forward(Launcher& launcher, const MatmulForward& op) {
  const std::int64_t N = op.weight.shape[0];
  const std::int64_t K = op.weight.shape[1];
  const std::int64_t R = op.x.elements() / K;
  TERRACE_CHECK_EQ(op.y.elements(), R * N);
  launcher.product({.rows = R,
                    .cols = N,
                    .depth = K,
                    .a = op.x.data,
                    .a_row = K,
                    .a_depth = 1,
                    .b = op.weight.data,
                    .b_depth = 1,
                    .b_col = K,
                    .c = op.y.data,
                    .type = op.x.dtype,
                    .c_type = op.y.dtype,
                    .bias = op.bias.data});
}

template <typename Launcher>
void matmul_backward_input(Launcher& launcher, const MatmulBackwardInput& op) {
  const std::int64_t N = op.weight.shape[0];
  const std::int64_t K = op.weight.shape[1];
  const std::int64_t R = op.dy.elements() / N;
  TERRACE_CHECK_EQ(op.dx.elements(), R * K);
  launcher.product({.rows = R,
                    .cols = K,
                    .depth = N,
                    .a = op.dy.data,
                    .a_row = N,
                    .a_depth = 1,
                    .b = op.weight.data,
                    .b_depth = K,
                    .b_col = 1,
                    .c = op.dx.data,
                    .type = op.dy.dtype,
                    .c_type = op.dx.dtype});
}

// The most elements of a part of a weight gradient. A weight gradient is computed in parts of whole
// rows: a part that is added to another gradient is first completed in workspace. The parts are the
// same in both modes, so the bits are too.
inline constexpr std::int64_t kGradientPartMax = std::int64_t{16} << 20;

// Returns the rows of a part: a multiple of four where there are several parts, so that all begin
// at the same distance from a boundary.
inline std::int64_t gradient_part_rows(std::int64_t N, std::int64_t K) {
  const std::int64_t rows = std::max<std::int64_t>(kGradientPartMax / K / 4 * 4, 4);
  return std::min(rows, N);
}

// Parts of the rows of dy that are summed first, each in row order.
inline constexpr std::int64_t kColumnSumParts = 64;

template <typename T>
struct ColumnSumsKernel {
  const T* dy;
  float* partial;  // [parts, N]
  std::int64_t R, N, stride, rows_of_part, column_blocks;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t part = block.index() / column_blocks;
    const std::int64_t first = part * rows_of_part;
    const std::int64_t last = first + rows_of_part < R ? first + rows_of_part : R;
    block.for_each_thread([&](int t) {
      const std::int64_t n = block.index() % column_blocks * Block::kThreads + t;
      if (n >= N) return;
      float sum = 0;
      for (std::int64_t r = first; r < last; ++r) sum += to_float(dy[r * stride + n]);
      partial[part * N + n] = sum;
    });
  }
};

inline std::int64_t stride_of(const MatmulBackwardWeight& op) {
  return op.dy_stride == 0 ? op.dweight.shape[0] : op.dy_stride;
}

template <typename Launcher>
void bias_gradient(Launcher& launcher, const MatmulBackwardWeight& op, std::int64_t R,
                   std::int64_t N, float* partial) {
  constexpr int kThreads = 128;
  const std::int64_t rows_of_part = divide_up(R, kColumnSumParts);
  const std::int64_t parts = divide_up(R, rows_of_part);
  const std::int64_t column_blocks = divide_up(N, kThreads);
  with_compute_type(op.dy.dtype, [&]<typename T>(std::type_identity<T>) {
    const ColumnSumsKernel<T> kernel{op.dy.as<T>(), partial,      R, N, stride_of(op),
                                     rows_of_part,  column_blocks};
    launcher.template launch<kThreads>("bias_gradient", kernel, parts * column_blocks);
  });
  launch_join_columns(launcher, {partial, parts, N, N, N, op.dbias.as<float>(), nullptr, op.mode});
}

inline std::size_t matmul_backward_weight_workspace(const MatmulBackwardWeight& op) {
  const std::int64_t N = op.dweight.shape[0];
  const std::int64_t K = op.dweight.shape[1];
  const auto part = static_cast<std::size_t>(gradient_part_rows(N, K) * K) * sizeof(float);
  const auto sums = static_cast<std::size_t>(kColumnSumParts * N) * sizeof(float);
  return (op.mode == GradientMode::kAccumulate ? WorkspaceCutter::padded_like(part) : 0) +
         (op.dbias.empty() ? 0 : WorkspaceCutter::padded_bytes(sums));
}

template <typename Launcher>
void matmul_backward_weight(Launcher& launcher, const MatmulBackwardWeight& op) {
  const std::int64_t N = op.dweight.shape[0];
  const std::int64_t K = op.dweight.shape[1];
  const std::int64_t R = op.dy.elements() / N;
  TERRACE_CHECK_EQ(op.x.elements(), R * K);
  const bool joins = op.mode == GradientMode::kAccumulate;
  const std::int64_t part_rows = gradient_part_rows(N, K);
  WorkspaceCutter workspace(launcher.workspace());
  float* const dweight = op.dweight.as<float>();
  const std::int64_t wanted = dweight == nullptr ? 0 : N;  // rows
  float* const part =
      joins && wanted > 0 ? workspace.take_like<float>(part_rows * K, dweight) : nullptr;
  float* const column_sums =
      op.dbias.empty() ? nullptr : workspace.take<float>(kColumnSumParts * N);
  for (std::int64_t n = 0; n < wanted; n += part_rows) {
    const std::int64_t rows = std::min(part_rows, N - n);
    float* const target = joins ? part : dweight + n * K;
    launcher.product({.rows = rows,
                      .cols = K,
                      .depth = R,
                      .a = op.dy.data + static_cast<std::size_t>(n) * size_of(op.dy.dtype),
                      .a_row = 1,
                      .a_depth = stride_of(op),
                      .b = op.x.data,
                      .b_depth = K,
                      .b_col = 1,
                      .c = reinterpret_cast<std::byte*>(target),
                      .type = op.dy.dtype,
                      .c_type = DType::kF32});
    if (!joins) continue;
    float* const sum = dweight + n * K;
    const AddBody<float> body{sum, part, sum, may_load_packs({sum, part}, 0)};
    launch_map<kPackOf<float>>(launcher, "join_gradient", 1, rows * K, body);
  }
  if (!op.dbias.empty()) bias_gradient(launcher, op, R, N, column_sums);
}

}  // namespace terrace::shared
