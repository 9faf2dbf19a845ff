#include "kernels/cpu/cpu_rope.h"

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void rotate_head(T* head, const float* cosines, std::int64_t half, bool inverse) {
  const float* sines = cosines + half;
  const Vec sign = splat(inverse ? -1.0F : 1.0F);
  for_each_vector(half, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec cosine = load_n(cosines + i, n);
    const Vec sine = hn::Mul(sign, load_n(sines + i, n));
    const Vec first = load_n(head + i, n);
    const Vec second = load_n(head + half + i, n);
    store_n(hn::Sub(hn::Mul(first, cosine), hn::Mul(second, sine)), head + i, n);
    store_n(hn::Add(hn::Mul(second, cosine), hn::Mul(first, sine)), head + half + i, n);
  });
}

template <typename T>
void rotate_rows(const Rope& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t R = op.rotary_width;
  for (std::int64_t r = begin; r < end; ++r) {
    T* row = reinterpret_cast<T*>(op.heads.data) + r * op.heads.stride;
    const std::int64_t position = op.positions.empty() ? op.first_position + r % op.sequence
                                                       : op.positions.as<const std::int32_t>()[r];
    TERRACE_CHECK(position >= 0 && (position + 1) * R <= op.table.elements());
    const float* table = op.table.as<const float>() + position * R;
    for (std::int64_t at = 0; at < op.heads.width; at += op.head_width) {
      rotate_head(row + at, table, R / 2, op.inverse);
    }
  }
}

void rope(const Rope& op, std::int64_t begin, std::int64_t end) {
  if (op.heads.dtype == DType::kF32) return rotate_rows<float>(op, begin, end);
  rotate_rows<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(rope);

void cpu_rope(const KernelContext& context, const Rope& op) {
  constexpr std::int64_t kRowBlock = 16;
  const std::int64_t rows = op.heads.rows;
  TERRACE_CHECK(op.heads.dtype == DType::kF32 || op.heads.dtype == DType::kBF16);
  TERRACE_CHECK(op.sequence > 0 || op.positions.elements() == rows);
  TERRACE_CHECK_EQ(op.heads.width % op.head_width, 0);
  TERRACE_CHECK_EQ(op.rotary_width % 2, 0);
  TERRACE_CHECK_LE(op.rotary_width, op.head_width);
  for_each_block(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
