#include "kernels/cpu/cpu_sum_bf16.h"

#include "base/half.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_sum_bf16.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

HWY_INLINE const Bf16* bf16_at(const std::byte* data, std::size_t element) {
  return reinterpret_cast<const Bf16*>(data) + element;
}
HWY_INLINE Bf16* bf16_at(std::byte* data, std::size_t element) {
  return reinterpret_cast<Bf16*>(data) + element;
}

// As many elements as vectors take; returns how many.
std::size_t sum_vectors(std::span<std::byte* const> targets,
                        std::span<const std::byte* const> sources, std::size_t elements) {
  constexpr auto kVector = static_cast<std::size_t>(kLanes);
  constexpr std::size_t kStep = 4 * kVector;  // of each source in turn
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    const Bf16* first = bf16_at(sources.front(), i);
    Vec sum0 = load(first);
    Vec sum1 = load(first + kVector);
    Vec sum2 = load(first + 2 * kVector);
    Vec sum3 = load(first + 3 * kVector);
    for (std::size_t rank = 1; rank < sources.size(); ++rank) {
      const Bf16* next = bf16_at(sources[rank], i);
      sum0 = hn::Add(sum0, load(next));
      sum1 = hn::Add(sum1, load(next + kVector));
      sum2 = hn::Add(sum2, load(next + 2 * kVector));
      sum3 = hn::Add(sum3, load(next + 3 * kVector));
    }
    const WordVec rounded0 = bf16_words_nearest_even(sum0);
    const WordVec rounded1 = bf16_words_nearest_even(sum1);
    const WordVec rounded2 = bf16_words_nearest_even(sum2);
    const WordVec rounded3 = bf16_words_nearest_even(sum3);
    for (std::byte* target : targets) {
      Bf16* at = bf16_at(target, i);
      store_halves(rounded0, at);
      store_halves(rounded1, at + kVector);
      store_halves(rounded2, at + 2 * kVector);
      store_halves(rounded3, at + 3 * kVector);
    }
  }
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_vectors);

void sum_bf16_in_order(std::span<std::byte* const> targets,
                       std::span<const std::byte* const> sources, std::size_t elements) {
  const std::size_t done = HWY_DYNAMIC_DISPATCH(sum_vectors)(targets, sources, elements);
  for (std::size_t i = done; i < elements; ++i) {
    float sum = to_float(reinterpret_cast<const Bf16*>(sources.front())[i]);
    for (const std::byte* source : sources.subspan(1)) {
      sum += to_float(reinterpret_cast<const Bf16*>(source)[i]);
    }
    for (std::byte* target : targets) {
      reinterpret_cast<Bf16*>(target)[i] = to_bf16_nearest_even(sum);
    }
  }
}

}  // namespace terrace
#endif  // HWY_ONCE
