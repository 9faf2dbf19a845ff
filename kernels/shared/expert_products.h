#pragma once

#include <math.h>

#include <cstdint>
#include <string_view>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// The products of experts. How many rows an expert has is known on the GPU alone: a launch has
// blocks for the worst case, and a block finds out whether there is work for it. Tiles of 64 x 64
// in plain fp32 arithmetic; every element is summed in order of the depth.
namespace terrace::shared {

// The rows of one side of a product, in sorted order.
template <typename T>
struct SideRows {
  const T* data;
  const std::int32_t* order;
  Divisor per_row;
  std::int64_t width;
  bool is_by_row;

  TERRACE_KERNEL float at(std::int64_t i, std::int64_t column) const {
    const std::int64_t row = is_by_row ? per_row.quotient(order[i]) : i;
    return to_float(data[row * width + column]);
  }
};

template <typename T>
SideRows<T> side_rows(const ExpertSide& side, const ExpertRows& rows) {
  const std::int64_t width = side.matrix.elements() / side.matrix.shape[0];
  return {side.matrix.as<T>(), rows.order.as<std::int32_t>(),
          Divisor(rows.per_row, rows.order.elements()), width, side.is_by_row};
}

// The tile of a product that a block computes.
struct ExpertTile {
  bool is_there = false;
  std::int64_t expert = 0;
  std::int64_t row = 0, row_end = 0;  // of the result
  std::int64_t column = 0;
  std::int64_t depth = 0, depth_end = 0;  // what is summed over
};

// Computes the tiles of a Product, which has tile(index), the operands a(tile, row, depth) and
// b(tile, depth, column) in fp32, `columns`, and store(tile, row, column, sum).
template <typename Product>
struct ExpertTileKernel {
  Product product;

  static constexpr int kThreads = 256;
  static constexpr int kTile = 64;
  static constexpr int kDepth = 16;
  static constexpr int kEach = 4;            // rows and columns of a thread
  static constexpr int kStride = kTile + 4;  // of one depth in shared memory, in floats
  static constexpr std::size_t kSharedBytes = 2 * kDepth * kStride * sizeof(float);

  struct Sums {
    float at[kEach][kEach];
  };

  // Loads the next kDepth of both operands, depth by depth, with zeros past the edges.
  template <typename Block>
  TERRACE_KERNEL void load(Block& block, const ExpertTile& tile, std::int64_t depth, float* a,
                           float* b) const {
    block.for_each_thread([&](int t) {
      for (int i = t; i < kDepth * kTile; i += kThreads) {
        const int k = i % kDepth;
        const int at = i / kDepth;
        const bool is_deep = depth + k < tile.depth_end;
        const bool has_a = is_deep && tile.row + at < tile.row_end;
        const bool has_b = is_deep && tile.column + at < product.columns;
        a[k * kStride + at] = has_a ? product.a(tile, tile.row + at, depth + k) : 0.0F;
        b[k * kStride + at] = has_b ? product.b(tile, depth + k, tile.column + at) : 0.0F;
      }
    });
  }

  TERRACE_KERNEL static void multiply(const float* a, const float* b, int t, Sums& sums) {
    const int i0 = t / 16 * kEach;
    const int j0 = t % 16 * kEach;
    for (int k = 0; k < kDepth; ++k) {
      TERRACE_UNROLL
      for (int i = 0; i < kEach; ++i) {
        TERRACE_UNROLL
        for (int j = 0; j < kEach; ++j) {
          float& sum = sums.at[i][j];
          sum = ::fmaf(a[k * kStride + i0 + i], b[k * kStride + j0 + j], sum);
        }
      }
    }
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const ExpertTile tile = product.tile(block.index());
    if (!tile.is_there) return;
    auto* const a = reinterpret_cast<float*>(block.shared_memory());
    float* const b = a + kDepth * kStride;
    typename Block::template PerThread<Sums> sums;
    block.for_each_thread([&](int t) { sums[t] = Sums{}; });
    for (std::int64_t depth = tile.depth; depth < tile.depth_end; depth += kDepth) {
      load(block, tile, depth, a, b);
      block.sync();
      block.for_each_thread([&](int t) { multiply(a, b, t, sums[t]); });
      block.sync();
    }
    block.for_each_thread([&](int t) {
      for (int i = 0; i < kEach; ++i) {
        for (int j = 0; j < kEach; ++j) {
          const std::int64_t row = tile.row + t / 16 * kEach + i;
          const std::int64_t column = tile.column + t % 16 * kEach + j;
          if (row >= tile.row_end || column >= product.columns) continue;
          product.store(tile, row, column, sums[t].at[i][j]);
        }
      }
    });
  }
};

template <typename Product, typename Launcher>
void launch_expert_tiles(Launcher& launcher, std::string_view name, const Product& product,
                         std::int64_t blocks) {
  using Kernel = ExpertTileKernel<Product>;
  launcher.template launch<Kernel::kThreads>(name, Kernel{product}, blocks, Kernel::kSharedBytes);
}

inline constexpr std::int64_t kExpertTile = 64;

// The product of each expert's rows with its weight, or with its weight transposed.
template <typename T>
struct ExpertRowsProduct {
  SideRows<T> side;
  const std::int32_t* offsets;
  std::int64_t experts;
  const T* weights;
  std::int64_t weight_stride;                // from expert to expert
  std::int64_t weight_column, weight_depth;  // strides within a weight
  T* result;
  std::int64_t columns, depth;
  std::int64_t column_tiles;

  // Row tiles of all experts follow each other; an expert's last one may be short.
  TERRACE_KERNEL ExpertTile tile(std::int64_t index) const {
    std::int64_t row_tile = index / column_tiles;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t rows = offsets[e + 1] - offsets[e];
      const std::int64_t tiles = (rows + kExpertTile - 1) / kExpertTile;
      if (row_tile < tiles) {
        return {true,
                e,
                offsets[e] + row_tile * kExpertTile,
                offsets[e + 1],
                index % column_tiles * kExpertTile,
                0,
                depth};
      }
      row_tile -= tiles;
    }
    return {};
  }
  TERRACE_KERNEL float a(const ExpertTile&, std::int64_t row, std::int64_t k) const {
    return side.at(row, k);
  }
  TERRACE_KERNEL float b(const ExpertTile& tile, std::int64_t k, std::int64_t column) const {
    return to_float(
        weights[tile.expert * weight_stride + column * weight_column + k * weight_depth]);
  }
  TERRACE_KERNEL void store(const ExpertTile&, std::int64_t row, std::int64_t column,
                            float sum) const {
    result[row * columns + column] = round_to<T>(sum);
  }
};

// Returns the blocks that there are at the most: each expert may have a tile that is not full.
template <typename T>
std::int64_t blocks_of(const ExpertRowsProduct<T>& product, const ExpertRows& rows) {
  return (rows.order.elements() / kExpertTile + product.experts) * product.column_tiles;
}

template <typename Launcher>
void expert_forward(Launcher& launcher, const ExpertForward& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    ExpertRowsProduct<T> product;
    product.side = side_rows<T>(op.x, op.rows);
    product.offsets = op.rows.offsets.as<std::int32_t>();
    product.experts = op.weights.rows;
    product.weights = reinterpret_cast<const T*>(op.weights.data);
    product.weight_stride = op.weights.stride;
    product.depth = product.side.width;
    product.columns = op.weights.width / product.depth;
    product.weight_column = product.depth;
    product.weight_depth = 1;
    product.result = op.y.as<T>();
    product.column_tiles = divide_up(product.columns, kExpertTile);
    launch_expert_tiles(launcher, "expert_forward", product, blocks_of(product, op.rows));
  });
}

template <typename Launcher>
void expert_backward_input(Launcher& launcher, const ExpertBackwardInput& op) {
  with_compute_type(op.dx.dtype, [&]<typename T>(std::type_identity<T>) {
    ExpertRowsProduct<T> product;
    product.side = side_rows<T>(op.dy, op.rows);
    product.offsets = op.rows.offsets.as<std::int32_t>();
    product.experts = op.weights.rows;
    product.weights = reinterpret_cast<const T*>(op.weights.data);
    product.weight_stride = op.weights.stride;
    product.depth = product.side.width;
    product.columns = op.weights.width / product.depth;
    product.weight_column = 1;
    product.weight_depth = product.columns;
    product.result = op.dx.as<T>();
    product.column_tiles = divide_up(product.columns, kExpertTile);
    launch_expert_tiles(launcher, "expert_backward_input", product, blocks_of(product, op.rows));
  });
}

// The gradient of each expert's weight: a sum over the expert's rows.
template <typename T>
struct ExpertWeightProduct {
  SideRows<T> dy, x;
  const std::int32_t* offsets;
  float* dweights;
  std::int64_t stride;  // from expert to expert
  std::int64_t columns;
  std::int64_t row_tiles, column_tiles;
  GradientMode mode;

  TERRACE_KERNEL ExpertTile tile(std::int64_t index) const {
    const std::int64_t e = index / (row_tiles * column_tiles);
    return {true,
            e,
            index / column_tiles % row_tiles * kExpertTile,
            dy.width,
            index % column_tiles * kExpertTile,
            offsets[e],
            offsets[e + 1]};
  }
  TERRACE_KERNEL float a(const ExpertTile&, std::int64_t row, std::int64_t i) const {
    return dy.at(i, row);
  }
  TERRACE_KERNEL float b(const ExpertTile&, std::int64_t i, std::int64_t column) const {
    return x.at(i, column);
  }
  TERRACE_KERNEL void store(const ExpertTile& tile, std::int64_t row, std::int64_t column,
                            float sum) const {
    join_gradient(dweights[tile.expert * stride + row * columns + column], sum, mode);
  }
};

template <typename Launcher>
void expert_backward_weight(Launcher& launcher, const ExpertBackwardWeight& op) {
  with_compute_type(op.x.matrix.dtype, [&]<typename T>(std::type_identity<T>) {
    ExpertWeightProduct<T> product;
    product.dy = side_rows<T>(op.dy, op.rows);
    product.x = side_rows<T>(op.x, op.rows);
    TERRACE_CHECK_EQ(op.dweights.width, product.dy.width * product.x.width);
    product.offsets = op.rows.offsets.as<std::int32_t>();
    product.dweights = reinterpret_cast<float*>(op.dweights.data);
    product.stride = op.dweights.stride;
    product.columns = product.x.width;
    product.row_tiles = divide_up(product.dy.width, kExpertTile);
    product.column_tiles = divide_up(product.columns, kExpertTile);
    product.mode = op.mode;
    launch_expert_tiles(launcher, "expert_backward_weight", product,
                        op.dweights.rows * product.row_tiles * product.column_tiles);
  });
}

template <typename Op>
std::size_t no_expert_workspace(const Op& /*op*/, int /*workers*/) {
  return 0;
}

}  // namespace terrace::shared
