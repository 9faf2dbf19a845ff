#include "kernels/cpu/cpu_dropout.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_dropout.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"
#include "kernels/cpu/philox_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// The number of columns for which random words are made at once.
inline constexpr std::int64_t kDropoutColumns = 256;
static_assert(kDropoutColumns % (4 * kLanes) == 0, "whole vectors of counters, four words each");

// Fills `random` with the random words of kDropoutColumns columns of the whole row, from
// `first_column` on, which is a multiple of four.
HWY_INLINE void fill_random(const PhiloxVector& numbers, std::uint64_t position,
                            std::int64_t first_column, std::uint32_t* random) {
  const std::uint64_t first = (position << 32U) + static_cast<std::uint64_t>(first_column) / 4;
  for (std::int64_t i = 0; i < kDropoutColumns; i += 4 * kLanes) {
    numbers.store(first + static_cast<std::uint64_t>(i) / 4, random + i);
  }
}

template <typename T>
HWY_INLINE void drop_row(const Dropout& op, std::int64_t row) {
  const LaneWords words;
  const std::int64_t columns = op.x.shape[1];
  const T* const x = op.x.as<const T>() + row * columns;
  T* const y = op.y.as<T>() + row * columns;
  const Vec factor = splat(op.factor);
  const WordVec threshold = hn::Set(words, op.threshold);
  const auto sample = static_cast<std::uint32_t>(op.samples.as<const std::int32_t>()[row]);
  const PhiloxVector numbers(op.seed, op.stream, sample);
  const auto position = static_cast<std::uint64_t>(row % op.positions);
  // Vectors at the end of a row read past the words of its last columns.
  alignas(64) std::uint32_t random[kDropoutColumns + kLanes] = {};
  std::int64_t column = 0;
  while (column < columns) {
    const std::int64_t before = (op.first_column + column) % 4;  // columns of the group of four
    fill_random(numbers, position, op.first_column + column - before, random);
    const std::int64_t count = std::min(columns - column, kDropoutColumns - before);
    for_each_vector(count, [&, column, before](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const WordVec word = hn::LoadU(words, random + before + i);
      const auto is_dropped = hn::RebindMask(Lanes(), hn::Lt(word, threshold));
      const Vec kept = hn::Mul(factor, load_n(x + column + i, n));
      store_n(hn::IfThenZeroElse(is_dropped, kept), y + column + i, n);
    });
    column += count;
  }
}

template <typename T>
HWY_INLINE void drop_rows_as(const Dropout& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = op.x.shape[1];
  for (std::int64_t row = begin; row < end; ++row) {
    if (op.samples.as<const std::int32_t>()[row] >= 0) {
      drop_row<T>(op, row);
    } else if (op.x.data != op.y.data) {
      std::memcpy(op.y.as<T>() + row * columns, op.x.as<const T>() + row * columns,
                  static_cast<std::size_t>(columns) * sizeof(T));
    }
  }
}

void drop_rows(const Dropout& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return drop_rows_as<float>(op, begin, end);
  drop_rows_as<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(drop_rows);

void cpu_dropout(const KernelContext& context, const Dropout& op) {
  const std::int64_t rows = op.samples.elements();
  const std::int64_t columns = op.x.shape[1];
  TERRACE_CHECK(op.y.dtype == DType::kF32 || op.y.dtype == DType::kBF16);
  TERRACE_CHECK(op.x.dtype == op.y.dtype);
  TERRACE_CHECK_EQ(rows * columns, op.x.elements());
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  const std::int64_t block =
      std::max<std::int64_t>(1, kElementBlock / std::max<std::int64_t>(1, columns));
  for_each_block(context, rows, block, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(drop_rows)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
