#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/error.h"
#include "kernels/grouped_rows.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// RMSNorm and LayerNorm, forward and backward. A row is read once, into registers of the threads
// that share it: a warp while its registers suffice, a block of threads for wider rows.
namespace terrace::shared {

inline constexpr int kWarp = 32;

// Which norm a kernel computes. Each kind is compiled by itself, so that none carries what others
// need.
enum class NormKind : std::uint8_t {
  kLayer,
  kRms,      // the weight times the rounded value
  kWideRms,  // both other forms: the weight, or 1 + the weight, times the value in fp32
};

inline NormKind norm_kind(RmsNormForm form) {
  return form == RmsNormForm::kRoundThenMultiply ? NormKind::kRms : NormKind::kWideRms;
}

// Calls body(std::integral_constant<NormKind, kind>) for an RMS norm.
template <typename Body>
void with_rms_kind(RmsNormForm form, const Body& body) {
  if (norm_kind(form) == NormKind::kRms) {
    return body(std::integral_constant<NormKind, NormKind::kRms>());
  }
  body(std::integral_constant<NormKind, NormKind::kWideRms>());
}

// Returns the number that kWideRms adds to its weight.
inline float weight_offset(RmsNormForm form) {
  return form == RmsNormForm::kMultiplyByOnePlus ? 1.0F : 0.0F;
}

// Returns the factor that a normed value is multiplied by, given its weight.
template <NormKind Kind>
TERRACE_KERNEL float norm_factor(float weight, float offset) {
  if constexpr (Kind == NormKind::kWideRms) return weight + offset;
  return weight;
}

// Where the units of a norm are: its rows, or the groups of its rows (kernels/grouped_rows.h).
template <typename T>
struct UnitRows {
  T* data;
  std::int64_t stride;  // of rows
  std::int64_t width;   // of a unit
  Divisor groups;       // of a row

  TERRACE_KERNEL T* at(std::int64_t unit) const {
    const std::int64_t row = groups.quotient(unit);
    return data + row * stride + (unit - row * groups.divisor()) * width;
  }
};

template <typename T>
UnitRows<T> unit_rows(const StridedRows& rows, std::int64_t width) {
  TERRACE_CHECK(rows.empty() || DTypeOf<std::remove_const_t<T>>::value == rows.dtype);
  const std::int64_t groups = rows.empty() ? 1 : rows.width / width;
  return {reinterpret_cast<T*>(rows.data), rows.stride, width, Divisor(groups, rows.rows * groups)};
}

// Returns whether units of `width` elements are whole packs on boundaries of 16 bytes.
template <typename T>
bool units_are_whole(std::initializer_list<StridedRows> all, const TensorView& weight,
                     std::int64_t width) {
  bool whole = may_load_packs({weight.data}, static_cast<std::size_t>(width) * sizeof(T));
  for (const StridedRows& rows : all) {
    const auto stride_bytes = static_cast<std::size_t>(rows.stride) * sizeof(T);
    whole = whole && may_load_packs({rows.data}, stride_bytes);
  }
  return whole;
}

// The sums that the parts of a divided norm give each row, [parts, rows]; null where it is not
// divided.
struct PartSums {
  const float* sums = nullptr;
  std::int64_t parts = 0, rows = 0;

  TERRACE_KERNEL float of_row(std::int64_t r) const {
    float sum = sums[r];
    for (std::int64_t p = 1; p < parts; ++p) sum += sums[p * rows + r];
    return sum;
  }
};

inline PartSums part_sums(const TensorView& sums, const StridedRows& rows, std::int64_t width,
                          std::int64_t total_width) {
  const std::int64_t parts = checked_parts(sums, rows, width, total_width);
  if (parts == 0) return {};
  return {sums.as<float>(), parts, rows.rows};
}

// How a row is held in registers: by Threads threads, 32 or all threads of a block, with at most
// kPacks packs each. Whole: every pack is whole and on a boundary of 16 bytes. Kernels are compiled
// for whole rows and for other rows, because a branch beside every load would be most of their
// instructions. The bits do not depend on it.
template <int Threads, int Packs, bool Whole>
struct RowShape {
  static constexpr int kThreads = Threads;
  static constexpr int kPacks = Packs;
  static constexpr bool kWhole = Whole;
};

// Calls body(p, c, count) for the packs of a row that thread `lane` holds. The p-th pack begins at
// element c and is held in the registers numbered p.
template <typename Row, int Count, typename Body>
TERRACE_KERNEL void for_each_held_pack(int lane, int width, Body&& body) {
  TERRACE_UNROLL
  for (int p = 0; p < Row::kPacks; ++p) {
    const int c = (p * Row::kThreads + lane) * Count;
    if (c < width) body(p, c, Row::kWhole || width - c >= Count ? Count : width - c);
  }
}

template <typename T, int Packs>
struct HeldPacks {
  Words<T> at[Packs];
};

// RowThreads share a row: thread t has the group of rows `group` of its block, and is the group's
// thread `lane`.
template <int RowThreads, typename Block>
struct RowThread {
  static constexpr int kGroups = Block::kThreads / RowThreads;

  int group, lane;

  TERRACE_KERNEL explicit RowThread(int t)
      : group(kGroups == 1 ? 0 : static_cast<int>(static_cast<unsigned>(t) / RowThreads)),
        lane(kGroups == 1 ? t : static_cast<int>(static_cast<unsigned>(t) % RowThreads)) {}
};

// Replaces every thread's value by the sum of the values of its row.
template <int RowThreads, typename Block, typename Values>
TERRACE_KERNEL void row_sum(Block& block, Values& values) {
  if constexpr (RowThreads == kWarp) {
    block.warp_sum(values);
  } else {
    static_assert(RowThreads == Block::kThreads);
    const auto sum = block.sum(values);
    block.for_each_thread([&](int t) { values[t] = sum; });
  }
}

inline constexpr std::int64_t kNormWidthMax = 32768;

// Refuses, when a step is planned, a model that cannot be computed.
inline void check_norm_width(std::int64_t width) {
  if (width <= kNormWidthMax) return;
  throw ConfigError("norms on CUDA take rows of at most 32768 elements",
                    "compute this model on the device cpu");
}

// Calls body(RowShape) with how a row of C elements is held. Forward: one warp holds a row if it
// can.
template <typename T, bool Forward, bool Whole, typename Body>
void with_row_of(std::int64_t C, const Body& body) {
  const std::int64_t packs = divide_up(C, kPackOf<T>);
  TERRACE_CHECK_LE(C, kNormWidthMax);
  if constexpr (Forward) {
    if (packs <= 3 * kWarp) return body(RowShape<kWarp, 3, Whole>());
    if (packs <= 4 * kWarp) return body(RowShape<kWarp, 4, Whole>());
    if (packs <= 8 * kWarp) return body(RowShape<kWarp, 8, Whole>());
  } else {
    if (packs <= 3 * kWarp) return body(RowShape<kWarp, 3, Whole>());
    if (packs <= 128) return body(RowShape<128, 1, Whole>());
    if (packs <= 256) return body(RowShape<256, 1, Whole>());
  }
  if (packs <= 2 * 256) return body(RowShape<256, 2, Whole>());
  if (packs <= 4 * 256) return body(RowShape<256, 4, Whole>());
  if (packs <= 4 * 1024) return body(RowShape<1024, 4, Whole>());
  body(RowShape<1024, kNormWidthMax / 1024 / kPackOf<T>, Whole>());
}

// Whole: whether may_load_packs() is true for everything that the kernel reads and writes.
template <typename T, bool Forward, typename Body>
void with_row_shape(std::int64_t C, bool whole, const Body& body) {
  if (whole) return with_row_of<T, Forward, true>(C, body);
  with_row_of<T, Forward, false>(C, body);
}

}  // namespace terrace::shared
