#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/shared/block.h"

// A matrix product of any shape and strides in plain fp32 arithmetic, in tiles of 64 x 64. It is
// used where the vendor's library has no algorithm. Every element is summed in order of the depth.
namespace terrace::shared {

template <typename T, typename C>
struct TileProductKernel {
  Product p;
  std::int64_t tile_columns;  // tiles in a row of tiles

  static constexpr int kThreads = 256;
  static constexpr int kTile = 64;
  static constexpr int kDepth = 16;
  static constexpr int kEach = 4;            // rows and columns of a thread
  static constexpr int kStride = kTile + 4;  // of one depth in shared memory, in floats
  static constexpr std::size_t kSharedBytes = 2 * kDepth * kStride * sizeof(float);

  struct Sums {
    float at[kEach][kEach];
  };

  // Where the two operands' parts of a tile begin.
  struct Corner {
    std::int64_t row, col, depth;
  };

  // Loads the next kDepth of both operands as fp32, depth by depth, with zeros past the edges.
  template <typename Block>
  TERRACE_KERNEL void load(Block& block, const Corner& at, float* a, float* b) const {
    const std::int64_t row = at.row, col = at.col, depth = at.depth;
    const T* const from_a = reinterpret_cast<const T*>(p.a);
    const T* const from_b = reinterpret_cast<const T*>(p.b);
    block.for_each_thread([&](int t) {
      for (int i = t; i < kDepth * kTile; i += kThreads) {
        // Neighbouring threads read neighbouring elements, whichever stride is 1.
        const int a_k = p.a_depth == 1 ? i % kDepth : i / kTile;
        const int a_at = p.a_depth == 1 ? i / kDepth : i % kTile;
        const int b_k = p.b_depth == 1 ? i % kDepth : i / kTile;
        const int b_at = p.b_depth == 1 ? i / kDepth : i % kTile;
        const bool has_a = row + a_at < p.rows && depth + a_k < p.depth;
        const bool has_b = col + b_at < p.cols && depth + b_k < p.depth;
        a[a_k * kStride + a_at] =
            has_a ? to_float(from_a[(row + a_at) * p.a_row + (depth + a_k) * p.a_depth]) : 0.0F;
        b[b_k * kStride + b_at] =
            has_b ? to_float(from_b[(depth + b_k) * p.b_depth + (col + b_at) * p.b_col]) : 0.0F;
      }
    });
  }

  TERRACE_KERNEL void store(const Sums& sums, std::int64_t row, std::int64_t col) const {
    C* const to = reinterpret_cast<C*>(p.c);
    const T* const bias = reinterpret_cast<const T*>(p.bias);
    for (int i = 0; i < kEach && row + i < p.rows; ++i) {
      for (int j = 0; j < kEach && col + j < p.cols; ++j) {
        float sum = sums.at[i][j];
        if (bias != nullptr) sum += to_float(bias[col + j]);
        C& target = to[(row + i) * p.cols + col + j];
        if constexpr (std::is_same_v<C, float>) {
          target = p.joins ? target + sum : sum;
        } else {
          target = round_to<C>(sum);
        }
      }
    }
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const a = reinterpret_cast<float*>(block.shared_memory());
    float* const b = a + kDepth * kStride;
    const std::int64_t row = block.index() / tile_columns * kTile;
    const std::int64_t col = block.index() % tile_columns * kTile;
    typename Block::template PerThread<Sums> sums;
    block.for_each_thread([&](int t) { sums[t] = Sums{}; });
    for (std::int64_t depth = 0; depth < p.depth; depth += kDepth) {
      load(block, {row, col, depth}, a, b);
      block.sync();
      block.for_each_thread([&](int t) {
        const int i0 = t / 16 * kEach;
        const int j0 = t % 16 * kEach;
        for (int k = 0; k < kDepth; ++k) {
          TERRACE_UNROLL
          for (int i = 0; i < kEach; ++i) {
            TERRACE_UNROLL
            for (int j = 0; j < kEach; ++j) {
              float& sum = sums[t].at[i][j];
              sum = ::fmaf(a[k * kStride + i0 + i], b[k * kStride + j0 + j], sum);
            }
          }
        }
      });
      block.sync();
    }
    block.for_each_thread(
        [&](int t) { store(sums[t], row + t / 16 * kEach, col + t % 16 * kEach); });
  }
};

template <typename T, typename C, typename Launcher>
void launch_tile_product(Launcher& launcher, const Product& product) {
  using Kernel = TileProductKernel<T, C>;
  const std::int64_t tile_columns = divide_up(product.cols, Kernel::kTile);
  launcher.template launch<Kernel::kThreads>("tile_product", Kernel{product, tile_columns},
                                             divide_up(product.rows, Kernel::kTile) * tile_columns,
                                             Kernel::kSharedBytes);
}

template <typename Launcher>
void tile_product(Launcher& launcher, const Product& product) {
  if (product.rows == 0 || product.cols == 0) return;
  TERRACE_CHECK(!product.joins || product.c_type == DType::kF32);
  with_compute_type(product.type, [&]<typename T>(std::type_identity<T>) {
    if (product.c_type == DType::kF32) return launch_tile_product<T, float>(launcher, product);
    TERRACE_CHECK(product.c_type == product.type);
    launch_tile_product<T, T>(launcher, product);
  });
}

}  // namespace terrace::shared
