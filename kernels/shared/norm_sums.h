#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/norm.h"

// The sums that tensor-parallel ranks exchange for each row when they divide the width of a norm.
namespace terrace::shared {

// The sum of squares of a row.
template <typename T>
struct SquaresTerm {
  UnitRows<const T> x;
  bool aligned;

  TERRACE_KERNEL float sum(std::int64_t r, std::int64_t c, int count) const {
    const auto words = load_words(x.at(r) + c, count, aligned);
    float sum = 0;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) sum = ::fmaf(words.value(i), words.value(i), sum);
    return sum;
  }
};

// The dot product of a row's normed values and their gradient.
template <typename T>
struct AlongTerm {
  UnitRows<const T> dy, x;
  const T* weight;
  const float* rstd;
  float weight_offset;
  bool aligned;

  TERRACE_KERNEL float sum(std::int64_t r, std::int64_t c, int count) const {
    const auto gradients = load_words(dy.at(r) + c, count, aligned);
    const auto values = load_words(x.at(r) + c, count, aligned);
    const auto weights = load_words(weight + c, count, aligned);
    const float scale = rstd[r];
    float sum = 0;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float factor = weights.value(i) + weight_offset;
      sum = ::fmaf(gradients.value(i) * factor, values.value(i) * scale, sum);
    }
    return sum;
  }
};

// A warp sums a row: each of its threads adds some packs in order, then the tree of warp_sum() adds
// the threads' sums.
template <typename T, typename Term>
struct RowSumKernel {
  Term term;
  float* sums;
  std::int64_t R, C;

  static constexpr int kThreads = 256;
  static constexpr int kRows = kThreads / kWarp;  // of a block
  static constexpr int kPack = kPackOf<T>;

  TERRACE_KERNEL float thread_sum(std::int64_t r, int lane) const {
    float sum = 0;
    for (std::int64_t c = lane * kPack; c < C; c += kWarp * kPack) {
      sum += term.sum(r, c, C - c < kPack ? static_cast<int>(C - c) : kPack);
    }
    return sum;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    typename Block::template PerThread<float> values;
    const std::int64_t first = block.index() * kRows;
    block.for_each_thread([&](int t) {
      const std::int64_t r = first + t / kWarp;
      values[t] = r < R ? thread_sum(r, t % kWarp) : 0.0F;
    });
    block.warp_sum(values);
    block.for_each_thread([&](int t) {
      const std::int64_t r = first + t / kWarp;
      if (t % kWarp == 0 && r < R) sums[r] = values[t];
    });
  }
};

template <typename T, typename Launcher, typename Term>
void launch_row_sums(Launcher& launcher, std::string_view name, const Term& term,
                     const StridedRows& rows, const TensorView& sums) {
  TERRACE_CHECK_EQ(sums.elements(), rows.rows);
  using Kernel = RowSumKernel<T, Term>;
  const Kernel kernel{term, sums.as<float>(), rows.rows, rows.width};
  launcher.template launch<Kernel::kThreads>(name, kernel, divide_up(rows.rows, Kernel::kRows));
}

template <typename Launcher>
void row_squares(Launcher& launcher, const RowSquares& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = units_are_whole<T>({op.x}, {}, op.x.width);
    const SquaresTerm<T> term{unit_rows<const T>(op.x, op.x.width), aligned};
    launch_row_sums<T>(launcher, "row_squares", term, op.x, op.sums);
  });
}

template <typename Launcher>
void norm_along(Launcher& launcher, const NormAlong& op) {
  const std::int64_t C = op.x.width;
  check_same_rows(op.dy, op.x);
  TERRACE_CHECK_EQ(op.weight.elements(), C);
  TERRACE_CHECK_EQ(op.rstd.elements(), op.x.rows);
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const AlongTerm<T> term{unit_rows<const T>(op.dy, C),
                            unit_rows<const T>(op.x, C),
                            op.weight.as<T>(),
                            op.rstd.as<float>(),
                            weight_offset(op.form),
                            units_are_whole<T>({op.dy, op.x}, op.weight, C)};
    launch_row_sums<T>(launcher, "norm_along", term, op.x, op.sums);
  });
}

}  // namespace terrace::shared
