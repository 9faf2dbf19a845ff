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
  constexpr auto kStep = static_cast<std::size_t>(kLanes);
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    Vec sum = load(bf16_at(sources.front(), i));
    for (std::size_t rank = 1; rank < sources.size(); ++rank) {
      sum = hn::Add(sum, load(bf16_at(sources[rank], i)));
    }
    const WordVec rounded = bf16_words_nearest_even(sum);
    for (std::byte* target : targets) store_halves(rounded, bf16_at(target, i));
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
