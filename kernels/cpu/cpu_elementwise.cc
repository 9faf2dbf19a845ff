#include "kernels/cpu/cpu_elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void add_to(const T* a, const T* b, T* y, std::int64_t elements) {
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    store_n(hn::Add(load_n(a + i, n), load_n(b + i, n)), y + i, n);
  });
}

template <typename T>
HWY_INLINE void add_scaled(const Add& op, std::int64_t begin, std::int64_t end) {
  const T* a = op.a.as<const T>() + begin;
  const T* b = op.b.as<const T>() + begin;
  T* y = op.y.as<T>() + begin;
  const Vec scale = splat(op.b_scale);
  for_each_vector(end - begin, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    store_n(hn::Add(load_n(a + i, n), hn::Mul(scale, load_n(b + i, n))), y + i, n);
  });
}

void add_scaled_any(const Add& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return add_scaled<float>(op, begin, end);
  add_scaled<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void scale_as(const Scale& op, std::int64_t begin, std::int64_t end) {
  const T* x = op.x.as<const T>() + begin;
  T* y = op.y.as<T>() + begin;
  const Vec factor = splat(op.factor);
  for_each_vector(end - begin, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    store_n(hn::Mul(factor, load_n(x + i, n)), y + i, n);
  });
}

void scale_any(const Scale& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return scale_as<float>(op, begin, end);
  scale_as<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void scale_rows_as(const ScaleRows& op, std::int64_t begin, std::int64_t end) {
  const Vec factor = splat(op.factor);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = reinterpret_cast<const T*>(op.x.data) + row * op.x.stride;
    T* y = reinterpret_cast<T*>(op.y.data) + row * op.y.stride;
    if (op.adds) {
      for_each_vector(op.y.width, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
        store_n(hn::Add(load_n(y + i, n), hn::Mul(factor, load_n(x + i, n))), y + i, n);
      });
    } else {
      for_each_vector(op.y.width, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
        store_n(hn::Mul(factor, load_n(x + i, n)), y + i, n);
      });
    }
  }
}

void scale_rows_any(const ScaleRows& op, std::int64_t begin, std::int64_t end) {
  if (op.y.dtype == DType::kF32) return scale_rows_as<float>(op, begin, end);
  scale_rows_as<Bf16>(op, begin, end);
}

void add_floats(const float* a, const float* b, float* y, std::int64_t elements) {
  add_to(a, b, y, elements);
}

void add_halves(const Bf16* a, const Bf16* b, Bf16* y, std::int64_t elements) {
  add_to(a, b, y, elements);
}

void narrow(const float* source, Bf16* target, std::int64_t elements) {
  std::int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    store_halves(bf16_words_ties_away(load(source + i)), target + i);
  }
  for (; i < elements; ++i) target[i] = to_bf16_ties_away(source[i]);
}

void narrow_to_even(const float* source, Bf16* target, std::int64_t elements) {
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    store_n(load_n(source + i, n), target + i, n);
  });
}

void widen(const Bf16* source, float* target, std::int64_t elements) {
  for_each_vector(elements, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    store_n(load_n(source + i, n), target + i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(add_floats);
HWY_EXPORT(add_halves);
HWY_EXPORT(add_scaled_any);
HWY_EXPORT(scale_any);
HWY_EXPORT(scale_rows_any);
HWY_EXPORT(narrow);
HWY_EXPORT(narrow_to_even);
HWY_EXPORT(widen);

void cpu_add(const KernelContext& context, const Add& op) {
  const std::int64_t elements = op.y.elements();
  const bool wide = op.y.dtype == DType::kF32;
  TERRACE_CHECK_EQ(op.a.elements(), elements);
  TERRACE_CHECK_EQ(op.b.elements(), elements);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    if (op.b_scale != 1.0F) {
      HWY_DYNAMIC_DISPATCH(add_scaled_any)(op, begin, end);
    } else if (wide) {
      HWY_DYNAMIC_DISPATCH(add_floats)
      (op.a.as<const float>() + begin, op.b.as<const float>() + begin, op.y.as<float>() + begin,
       end - begin);
    } else {
      HWY_DYNAMIC_DISPATCH(add_halves)
      (op.a.as<const Bf16>() + begin, op.b.as<const Bf16>() + begin, op.y.as<Bf16>() + begin,
       end - begin);
    }
  });
}

void cpu_scale(const KernelContext& context, const Scale& op) {
  const std::int64_t elements = op.y.elements();
  TERRACE_CHECK(op.y.dtype == DType::kF32 || op.y.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(op.x.elements(), elements);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_any)(op, begin, end);
  });
}

void cpu_scale_rows(const KernelContext& context, const ScaleRows& op) {
  TERRACE_CHECK(op.y.dtype == DType::kF32 || op.y.dtype == DType::kBF16);
  TERRACE_CHECK(op.x.dtype == op.y.dtype);
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  const std::int64_t rows =
      std::max<std::int64_t>(1, kElementBlock / std::max<std::int64_t>(1, op.y.width));
  for_each_block(context, op.y.rows, rows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_rows_any)(op, begin, end);
  });
}

void cpu_accumulate_gradient(const KernelContext& context, const AccumulateGradient& op) {
  const std::int64_t elements = op.target.elements();
  TERRACE_CHECK_EQ(op.source.elements(), elements);
  float* target = op.target.as<float>();
  const float* source = op.source.as<const float>();
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_floats)(target + begin, source + begin, target + begin, end - begin);
  });
}

void cpu_round_gradient(const KernelContext& context, const RoundGradient& op) {
  const std::int64_t elements = op.target.elements();
  TERRACE_CHECK_EQ(op.source.elements(), elements);
  Bf16* target = op.target.as<Bf16>();
  const float* source = op.source.as<const float>();
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(narrow_to_even)(source + begin, target + begin, end - begin);
  });
}

void cpu_fill_zero(const KernelContext& context, const FillZero& op) {
  const auto bytes = static_cast<std::int64_t>(op.target.size_bytes());
  for_each_block(context, bytes, 4 * kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    std::memset(op.target.data + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void cpu_cast_parameters(const KernelContext& context, const CastParameters& op) {
  const std::int64_t elements = op.target.elements();
  TERRACE_CHECK_EQ(op.source.elements(), elements);
  const bool from_wide = op.source.dtype == DType::kF32;
  if (op.source.dtype != op.target.dtype) {
    TERRACE_CHECK(op.target.dtype == (from_wide ? DType::kBF16 : DType::kF32));
    TERRACE_CHECK(from_wide || op.source.dtype == DType::kBF16);
  }
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    const auto size = static_cast<std::int64_t>(size_of(op.source.dtype));
    if (op.source.dtype == op.target.dtype) {
      std::memmove(op.target.data + begin * size, op.source.data + begin * size,
                   static_cast<std::size_t>((end - begin) * size));
    } else if (from_wide) {
      HWY_DYNAMIC_DISPATCH(narrow)
      (op.source.as<const float>() + begin, op.target.as<Bf16>() + begin, end - begin);
    } else {
      HWY_DYNAMIC_DISPATCH(widen)
      (op.source.as<const Bf16>() + begin, op.target.as<float>() + begin, end - begin);
    }
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
