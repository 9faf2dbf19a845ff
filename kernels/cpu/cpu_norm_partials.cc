#include "kernels/cpu/cpu_norm_partials.h"

#include <array>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/norm_tree.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_norm_partials.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

using Sums = hn::CappedTag<double, kNormLanes>;
using Floats = hn::Rebind<float, Sums>;

HWY_INLINE hn::Vec<Floats> floats_at(const float* source) { return hn::LoadU(Floats(), source); }
HWY_INLINE hn::Vec<Floats> floats_at(const Bf16* source) {
  const hn::RebindToUnsigned<Floats> words;
  const hn::Rebind<std::uint16_t, Floats> halves;
  const auto read = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(source));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, read)));
}

// The kNormLanes sums of the tree are held in as many vectors as the instruction set needs. A
// square is exact in fp64, so fused and unfused multiply-adds give the same bits.
template <typename T>
HWY_INLINE double sum_of_squares(const T* block, std::int64_t elements) {
  constexpr auto kWidth = static_cast<std::int64_t>(hn::MaxLanes(Sums()));
  constexpr std::int64_t kVectors = kNormLanes / kWidth;
  hn::Vec<Sums> sums[kVectors];
  for (std::int64_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(Sums());
  std::int64_t i = 0;
  for (; i + kNormLanes <= elements; i += kNormLanes) {
    for (std::int64_t j = 0; j < kVectors; ++j) {
      const auto value = hn::PromoteTo(Sums(), floats_at(block + i + j * kWidth));
      sums[j] = hn::MulAdd(value, value, sums[j]);
    }
  }
  alignas(64) std::array<double, kNormLanes> lanes;
  for (std::int64_t j = 0; j < kVectors; ++j) {
    hn::Store(sums[j], Sums(), lanes.data() + j * kWidth);
  }
  for (std::int64_t lane = 0; i < elements; ++i, ++lane) {
    const double value = to_float(block[i]);
    lanes[static_cast<std::size_t>(lane)] += value * value;
  }
  return reduce_norm_lanes(lanes);
}

double sum_of_floats(const float* block, std::int64_t elements) {
  return sum_of_squares(block, elements);
}

double sum_of_halves(const Bf16* block, std::int64_t elements) {
  return sum_of_squares(block, elements);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(sum_of_floats);
HWY_EXPORT(sum_of_halves);

void cpu_norm_partials(const KernelContext& context, const NormPartials& op) {
  const std::int64_t elements = op.gradient.elements();
  TERRACE_CHECK_EQ(op.partials.elements(), blocks_of(elements, kNormBlock));
  TERRACE_CHECK(op.gradient.dtype == DType::kF32 || op.gradient.dtype == DType::kBF16);
  const bool is_wide = op.gradient.dtype == DType::kF32;
  double* partials = op.partials.as<double>();
  for_each_block(context, elements, kNormBlock, [&](std::int64_t begin, std::int64_t end) {
    partials[begin / kNormBlock] = is_wide ? HWY_DYNAMIC_DISPATCH(sum_of_floats)(
                                                 op.gradient.as<const float>() + begin, end - begin)
                                           : HWY_DYNAMIC_DISPATCH(sum_of_halves)(
                                                 op.gradient.as<const Bf16>() + begin, end - begin);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE
