#pragma once

#include <bit>

#include "kernels/shared/element.h"

// Pieces of matrices as the 32 threads of a warp hold them for block.multiply2(): sums[16, 8] +=
// a[16, 16] b[16, 8]. The elements lie as in mma.m16n8k16 (PTX ISA, "Matrix fragments for
// mma.m16n8k16 with floating point type"): thread t has, with g = t % 32 / 4 and p = t % 4 * 2,
//
//   a:    at[0] (g, p..p+1)   at[1] (g+8, p..p+1)   at[2] (g, p+8..p+9)   at[3] (g+8, p+8..p+9)
//   b:    at[0] (p..p+1, g)   at[1] (p+8..p+9, g)
//   sums: at[0..1] (g, p..p+1)                      at[2..3] (g+8, p..p+1)
//
// So the sums of two neighbouring pieces, once rounded, are the operand a of the next product.
namespace terrace::shared {

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T x, y;
};

template <typename T>
struct MmaA {
  Pair<T> at[4];
};

template <typename T>
struct MmaB {
  Pair<T> at[2];
};

// Two pieces of b side by side: b[16, 16].
template <typename T>
struct MmaB2 {
  MmaB<T> at[2];
};

struct MmaSums {
  float at[4];
};

TERRACE_KERNEL inline int mma_group(int t) { return t % 32 / 4; }
TERRACE_KERNEL inline int mma_pair(int t) { return t % 4 * 2; }
TERRACE_KERNEL inline int mma_row(int t, int i) { return mma_group(t) + i / 2 * 8; }
TERRACE_KERNEL inline int mma_col(int t, int i) { return mma_pair(t) + i % 2; }

// Rows of elements in shared memory that begin on boundaries of 16 bytes. A GPU loads 8 elements of
// 16 bits at once, from rows and columns that are multiples of 8.
template <typename T>
struct Tile {
  T* at;
  int stride;

  TERRACE_KERNEL T& element(int row, int col) const { return at[row * stride + col]; }
  TERRACE_KERNEL Pair<T> pair(int row, int col) const {
    return *reinterpret_cast<const Pair<T>*>(at + row * stride + col);
  }
};

// a(i, k) = tile(row + i, col + k).
template <typename T>
TERRACE_KERNEL MmaA<T> a_of_tile(const Tile<T>& tile, int row, int col, int t) {
  const int g = row + mma_group(t);
  const int p = col + mma_pair(t);
  return {{tile.pair(g, p), tile.pair(g + 8, p), tile.pair(g, p + 8), tile.pair(g + 8, p + 8)}};
}

// b(k, n) = tile(row + n, col + k), for n below 8.
template <typename T>
TERRACE_KERNEL MmaB<T> b_of_rows(const Tile<T>& tile, int row, int col, int t) {
  const int g = row + mma_group(t);
  const int p = col + mma_pair(t);
  return {{tile.pair(g, p), tile.pair(g, p + 8)}};
}

// b(k, n) = tile(row + k, col + n).
template <typename T>
TERRACE_KERNEL MmaB<T> b_of_columns(const Tile<T>& tile, int row, int col, int t) {
  const int g = col + mma_group(t);
  const int p = row + mma_pair(t);
  return {{{tile.element(p, g), tile.element(p + 1, g)},
           {tile.element(p + 8, g), tile.element(p + 9, g)}}};
}

// The same two functions for n below 16.
template <typename T>
TERRACE_KERNEL MmaB2<T> b2_of_rows(const Tile<T>& tile, int row, int col, int t) {
  return {{b_of_rows(tile, row, col, t), b_of_rows(tile, row + 8, col, t)}};
}
template <typename T>
TERRACE_KERNEL MmaB2<T> b2_of_columns(const Tile<T>& tile, int row, int col, int t) {
  return {{b_of_columns(tile, row, col, t), b_of_columns(tile, row, col + 8, t)}};
}

// A GPU loads such pieces of 16-bit elements as four 8 x 8 matrices at once (PTX ISA, "ldmatrix").
// Thread t gives the address of one row of 8 elements, row t % 8 of matrix t % 32 / 8. Returns
// where that row is.
template <typename T>
TERRACE_KERNEL const T* row_for_a(const Tile<T>& tile, int row, int col, int t) {
  return &tile.element(row + t % 16, col + t % 32 / 16 * 8);
}
template <typename T>
TERRACE_KERNEL const T* row_for_b2_of_rows(const Tile<T>& tile, int row, int col, int t) {
  return &tile.element(row + t % 32 / 16 * 8 + t % 8, col + t % 16 / 8 * 8);
}
// The same for matrices that are transposed as they are loaded.
template <typename T>
TERRACE_KERNEL const T* row_for_b2_of_columns(const Tile<T>& tile, int row, int col, int t) {
  return &tile.element(row + t % 16, col + t % 32 / 16 * 8);
}

template <typename T>
TERRACE_KERNEL Pair<T> round_pair(float x, float y) {
  if constexpr (sizeof(T) == 2) {
    return std::bit_cast<Pair<T>>(round_two<T>(x, y));
  } else {
    return {x, y};
  }
}

// Returns the a that two neighbouring pieces of sums make.
template <typename T>
TERRACE_KERNEL MmaA<T> a_of_sums(const MmaSums& low, const MmaSums& high) {
  return {{round_pair<T>(low.at[0], low.at[1]), round_pair<T>(low.at[2], low.at[3]),
           round_pair<T>(high.at[0], high.at[1]), round_pair<T>(high.at[2], high.at[3])}};
}

}  // namespace terrace::shared
