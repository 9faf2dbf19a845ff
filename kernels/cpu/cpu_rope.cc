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
  const std::int64_t D = op.head_width;
  const std::int64_t stride = op.qkv.elements() / op.qkv.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    T* row = op.qkv.as<T>() + r * stride + op.first_head * D;
    const float* table = op.table.as<const float>() + r % op.sequence * D;
    for (std::int64_t head = 0; head < op.heads; ++head) {
      rotate_head(row + head * D, table, D / 2, op.inverse);
    }
  }
}

void rope(const Rope& op, std::int64_t begin, std::int64_t end) {
  if (op.qkv.dtype == DType::kF32) return rotate_rows<float>(op, begin, end);
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
  const std::int64_t rows = op.qkv.shape[0];
  TERRACE_CHECK(op.qkv.dtype == DType::kF32 || op.qkv.dtype == DType::kBF16);
  TERRACE_CHECK_LT(0, op.sequence);
  TERRACE_CHECK_EQ(op.head_width % 2, 0);
  TERRACE_CHECK_LE(op.sequence * op.head_width, op.table.elements());
  TERRACE_CHECK_LE(rows * (op.first_head + op.heads) * op.head_width, op.qkv.elements());
  for_each_block(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope)(op, begin, end);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
