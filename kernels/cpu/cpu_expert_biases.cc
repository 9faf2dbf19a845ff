#include "kernels/cpu/cpu_expert_biases.h"

#include <algorithm>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/row_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_expert_biases.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Calls body(row, expert) for the sorted rows [begin, end).
template <typename Body>
HWY_INLINE void for_each_row(const ExpertRows& rows, std::int64_t begin, std::int64_t end,
                             const Body& body) {
  const auto* const offsets = rows.offsets.as<const std::int32_t>();
  std::int64_t e = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    while (row >= offsets[e + 1]) ++e;
    body(row, e);
  }
}

// Returns the row of a side that the sorted row reads.
template <typename T>
HWY_INLINE const T* side_row(const ExpertRows& rows, const ExpertSide& side, std::int64_t row) {
  const std::int64_t width = side.matrix.elements() / side.matrix.shape[0];
  const std::int32_t* const order = rows.order.as<const std::int32_t>();
  return side.matrix.as<const T>() + (side.is_by_row ? order[row] / rows.per_row : row) * width;
}

template <typename T>
HWY_INLINE const T* bias_of(const StridedRows& biases, std::int64_t expert) {
  return reinterpret_cast<const T*>(biases.data) + expert * biases.stride;
}

template <typename T>
HWY_INLINE void add_bias_as(const AddExpertBias& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t N = op.biases.width;
  for_each_row(op.rows, begin, end, [&](std::int64_t row, std::int64_t e) TERRACE_VECTOR_BODY {
    const T* const bias = bias_of<T>(op.biases, e);
    T* const y = op.y.as<T>() + row * N;
    for_each_vector(N, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Add(load_n(y + i, n), load_n(bias + i, n)), y + i, n);
    });
  });
}

void add_bias(const AddExpertBias& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return add_bias_as<float>(op, begin, end);
  add_bias_as<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void add_share_as(const AddBiasShare& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t N = op.biases.width;
  for_each_row(op.rows, begin, end, [&](std::int64_t row, std::int64_t e) TERRACE_VECTOR_BODY {
    const T* const bias = bias_of<T>(op.biases, e);
    const T* const dy = side_row<T>(op.rows, op.dy, row);
    const std::int32_t slot = op.rows.order.as<const std::int32_t>()[row];
    op.dweight.as<float>()[slot] +=
        sum_over(N, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
          return hn::Mul(load_n(dy + i, n), load_n(bias + i, n));
        });
  });
}

void add_share(const AddBiasShare& op, std::int64_t begin, std::int64_t end) {
  if (op.dy.matrix.dtype == DType::kF32) return add_share_as<float>(op, begin, end);
  add_share_as<Bf16>(op, begin, end);
}

// Columns whose sums stay in a first-level cache.
inline constexpr std::int64_t kColumns = 512;

// Adds up columns [begin, end) of the rows of an expert.
template <typename T>
HWY_INLINE void sum_columns_as(const ExpertBiasGradient& op, std::int64_t expert,
                               std::int64_t begin, std::int64_t end) {
  alignas(64) float sums[kColumns] = {};
  const std::int64_t width = end - begin;
  const auto* const offsets = op.rows.offsets.as<const std::int32_t>();
  for (std::int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) {
    const T* const dy = side_row<T>(op.rows, op.dy, row) + begin;
    const std::int32_t slot = op.rows.order.as<const std::int32_t>()[row];
    const Vec weight = splat(op.weight.empty() ? 1.0F : op.weight.as<const float>()[slot]);
    for_each_vector(width, [&](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Add(load_n(sums + i, n), hn::Mul(weight, load_n(dy + i, n))), sums + i, n);
    });
  }
  float* const target =
      reinterpret_cast<float*>(op.dbiases.data) + expert * op.dbiases.stride + begin;
  const bool adds = op.mode == GradientMode::kAccumulate;
  for (std::int64_t i = 0; i < width; ++i) target[i] = (adds ? target[i] : 0.0F) + sums[i];
}

void sum_columns(const ExpertBiasGradient& op, std::int64_t expert, std::int64_t begin,
                 std::int64_t end) {
  if (op.dy.matrix.dtype == DType::kF32) return sum_columns_as<float>(op, expert, begin, end);
  sum_columns_as<Bf16>(op, expert, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(add_bias);
HWY_EXPORT(add_share);
HWY_EXPORT(sum_columns);

namespace {

constexpr std::int64_t kColumnBlock = 512;

void check_compute_type(DType type) { TERRACE_CHECK(type == DType::kF32 || type == DType::kBF16); }

std::int64_t experts_of(const ExpertRows& rows) { return rows.offsets.elements() - 1; }

// Checks that there is a bias of N elements for each expert.
void check_biases(const ExpertRows& rows, const StridedRows& biases, const TensorView& matrix) {
  TERRACE_CHECK_EQ(biases.rows, experts_of(rows));
  TERRACE_CHECK_EQ(biases.width, matrix.elements() / matrix.shape[0]);
}

// Calls body(begin, end) for blocks of the experts' sorted rows of `width` elements.
template <typename Body>
void for_each_row_block(const KernelContext& context, const ExpertRows& rows, std::int64_t width,
                        const Body& body) {
  const RowRange range = rows_in(rows.offsets, rows.order.elements());
  const std::int64_t block = std::max<std::int64_t>(1, kElementBlock / width);
  for_each_block(context, range.count(), block, [&](std::int64_t begin, std::int64_t end) {
    body(range.begin + begin, range.begin + end);
  });
}

}  // namespace

void cpu_add_expert_bias(const KernelContext& context, const AddExpertBias& op) {
  check_compute_type(op.y.dtype);
  check_biases(op.rows, op.biases, op.y);
  for_each_row_block(context, op.rows, op.biases.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_bias)(op, begin, end);
  });
}

void cpu_expert_bias_gradient(const KernelContext& context, const ExpertBiasGradient& op) {
  check_compute_type(op.dy.matrix.dtype);
  check_biases(op.rows, op.dbiases, op.dy.matrix);
  TERRACE_CHECK(op.dbiases.dtype == DType::kF32);
  const std::int64_t N = op.dbiases.width;
  const std::int64_t blocks = blocks_of(N, kColumnBlock);
  context.workers->parallel_for(experts_of(op.rows) * blocks, [&](std::int64_t task, int) {
    const std::int64_t begin = task % blocks * kColumnBlock;
    HWY_DYNAMIC_DISPATCH(sum_columns)
    (op, task / blocks, begin, std::min(begin + kColumnBlock, N));
  });
}

void cpu_add_bias_share(const KernelContext& context, const AddBiasShare& op) {
  check_compute_type(op.dy.matrix.dtype);
  check_biases(op.rows, op.biases, op.dy.matrix);
  TERRACE_CHECK_EQ(op.dweight.elements(), op.rows.order.elements());
  for_each_row_block(context, op.rows, op.biases.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_share)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
