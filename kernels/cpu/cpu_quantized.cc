#include "kernels/cpu/cpu_quantized.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_quantized.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

inline constexpr int kLevels = 16;
inline constexpr std::int64_t kHalfBlock = kQuantizedBlock / 2;

// Return the bits that an element is stored as: the word of a float, or a bf16 in the low half of a
// word.
HWY_INLINE WordVec stored_words(Vec value, const float*) { return hn::BitCast(LaneWords(), value); }
HWY_INLINE WordVec stored_words(Vec value, const Bf16*) { return bf16_words_nearest_even(value); }
HWY_INLINE void store_words(WordVec words, float* target) {
  store(hn::BitCast(Lanes(), words), target);
}
HWY_INLINE void store_words(WordVec words, Bf16* target) { store_halves(words, target); }

// Returns entries `index` (each below 16) of a table in memory.
HWY_INLINE WordVec look_up(const std::uint32_t* table, WordVec index) {
  const LaneWords words;
  if constexpr (kLanes == kLevels) {
    return hn::TableLookupLanes(hn::Load(words, table), hn::IndicesFromVec(words, index));
  } else if constexpr (2 * kLanes == kLevels) {
    const auto within = hn::IndicesFromVec(words, hn::And(index, hn::Set(words, kLanes - 1)));
    const WordVec low = hn::TableLookupLanes(hn::Load(words, table), within);
    const WordVec high = hn::TableLookupLanes(hn::Load(words, table + kLanes), within);
    return hn::IfThenElse(hn::Gt(index, hn::Set(words, kLanes - 1)), high, low);
  } else {
    alignas(64) std::uint32_t lanes[kLanes];
    hn::Store(index, words, lanes);
    for (std::uint32_t& lane : lanes) lane = table[lane];
    return hn::Load(words, lanes);
  }
}

// Decodes a whole block: the sixteen numbers that its codes stand for are computed and rounded
// once, then looked up.
template <typename T>
HWY_INLINE void nf4_block(const std::uint8_t* codes, const float* levels, float factor, T* target) {
  const LaneWords words;
  const hn::Rebind<std::uint8_t, LaneWords> bytes;
  alignas(64) std::uint32_t table[kLevels];
  for (std::int64_t i = 0; i < kLevels; i += kLanes) {
    hn::Store(stored_words(hn::Mul(load(levels + i), splat(factor)), target), words, table + i);
  }
  for (std::int64_t i = 0; i < kHalfBlock; i += kLanes) {
    const WordVec both = hn::PromoteTo(words, hn::LoadU(bytes, codes + i));
    store_words(look_up(table, hn::And(both, hn::Set(words, 15U))), target + i);
    store_words(look_up(table, hn::ShiftRight<4>(both)), target + kHalfBlock + i);
  }
}

template <typename T>
HWY_INLINE void int8_block(const std::uint8_t* codes, float factor, T* target) {
  const hn::Rebind<std::int8_t, Lanes> bytes;
  const hn::RebindToSigned<Lanes> integers;
  for (std::int64_t i = 0; i < kQuantizedBlock; i += kLanes) {
    const auto loaded = hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(codes) + i);
    const Vec levels = hn::ConvertTo(Lanes(), hn::PromoteTo(integers, loaded));
    store(hn::Mul(levels, splat(factor)), target + i);
  }
}

template <typename T>
HWY_INLINE void dequantize_as(const Dequantize& op, std::int64_t begin, std::int64_t end) {
  const QuantizedBytes bytes(op.bytes.data, op.shape);
  float levels[kLevels];
  for (int code = 0; code < kLevels; ++code) levels[code] = nf4_level(code);
  T* const target = op.target.as<T>();
  for (std::int64_t at = begin; at < end; at += kQuantizedBlock) {
    const std::int64_t block = at / kQuantizedBlock;
    const float factor = block_factor(bytes, op.shape, block);
    const std::uint8_t* const codes = bytes.codes + block * op.shape.block_bytes();
    if (end - at < kQuantizedBlock) {
      for (std::int64_t i = at; i < end; ++i) {
        const float level = block_level(bytes, op.shape, block, static_cast<int>(i - at));
        store_n(splat(level * factor), target + i, 1);
      }
    } else if (op.shape.form == QuantizedForm::kNf4) {
      nf4_block(codes, levels, factor, target + at);
    } else {
      int8_block(codes, factor, target + at);
    }
  }
}

void dequantize_any(const Dequantize& op, std::int64_t begin, std::int64_t end) {
  if (op.target.dtype == DType::kF32) return dequantize_as<float>(op, begin, end);
  dequantize_as<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(dequantize_any);

void cpu_dequantize(const KernelContext& context, const Dequantize& op) {
  TERRACE_CHECK(op.target.dtype == DType::kF32 || op.target.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(op.target.elements(), op.shape.elements);
  TERRACE_CHECK_EQ(op.bytes.elements(), op.shape.size_bytes());
  static_assert(kElementBlock % kQuantizedBlock == 0);
  for_each_block(context, op.shape.elements, kElementBlock,
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(dequantize_any)(op, begin, end);
                 });
}

}  // namespace terrace
#endif  // HWY_ONCE
