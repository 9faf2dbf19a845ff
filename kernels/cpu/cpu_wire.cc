#include "kernels/cpu/cpu_wire.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/wire_code.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_wire.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

using LaneIntegers = hn::RebindToSigned<Lanes>;
using LaneCodes = hn::Rebind<std::int8_t, Lanes>;
using LaneBytes = hn::Rebind<std::uint8_t, Lanes>;
using IntegerVec = hn::Vec<LaneIntegers>;

static_assert(kHalfWireBlock % kLanes == 0);

// Numbers of a block that wait in the cache.
struct BlockNumbers {
  alignas(64) float at[kWireBlock];
};

HWY_INLINE WordVec magnitude_words(Vec value) {
  const LaneWords words;
  return hn::And(hn::BitCast(words, value), hn::Set(words, 0x7fffffffU));
}
HWY_INLINE std::uint32_t largest_lane(WordVec magnitudes) {
  return hn::GetLane(hn::MaxOfLanes(LaneWords(), magnitudes));
}

template <typename T>
HWY_INLINE std::uint32_t largest_bits(const T* numbers) {
  WordVec largest = hn::Zero(LaneWords());
  for (std::int64_t i = 0; i < kWireBlock; i += kLanes) {
    largest = hn::Max(largest, magnitude_words(load(numbers + i)));
  }
  return largest_lane(largest);
}

// Calls emit(i, numbers) for the numbers that the codes of a block stand for, a vector at a time.
template <typename Emit>
HWY_INLINE void decode_block(WireForm form, const WireBlock& from, const Emit& emit) {
  const LaneIntegers integers;
  const Vec scale = splat(*from.scale);
  if (form == WireForm::kInt8) {
    for (std::int64_t i = 0; i < kWireBlock; i += kLanes) {
      const auto codes =
          hn::LoadU(LaneCodes(), reinterpret_cast<const std::int8_t*>(from.codes) + i);
      emit(i, hn::Mul(hn::ConvertTo(Lanes(), hn::PromoteTo(integers, codes)), scale));
    }
    return;
  }
  const IntegerVec offset = hn::Set(integers, kInt4Offset);
  for (std::int64_t i = 0; i < kHalfWireBlock; i += kLanes) {
    const IntegerVec both = hn::PromoteTo(integers, hn::LoadU(LaneBytes(), from.codes + i));
    const IntegerVec low = hn::Sub(hn::And(both, hn::Set(integers, 15)), offset);
    const IntegerVec high = hn::Sub(hn::ShiftRight<4>(both), offset);
    emit(i, hn::Mul(hn::ConvertTo(Lanes(), low), scale));
    emit(kHalfWireBlock + i, hn::Mul(hn::ConvertTo(Lanes(), high), scale));
  }
}

// Stores the codes of a block, given codes_at(i), the vector of codes from number i on.
template <typename CodesAt>
HWY_INLINE void store_codes(WireForm form, const CodesAt& codes_at, std::uint8_t* to) {
  const LaneIntegers integers;
  if (form == WireForm::kInt8) {
    for (std::int64_t i = 0; i < kWireBlock; i += kLanes) {
      hn::StoreU(hn::DemoteTo(LaneCodes(), codes_at(i)), LaneCodes(),
                 reinterpret_cast<std::int8_t*>(to) + i);
    }
    return;
  }
  const IntegerVec offset = hn::Set(integers, kInt4Offset);
  for (std::int64_t i = 0; i < kHalfWireBlock; i += kLanes) {
    const IntegerVec low = hn::Add(codes_at(i), offset);
    const IntegerVec high = hn::Add(codes_at(kHalfWireBlock + i), offset);
    const IntegerVec both = hn::Or(low, hn::ShiftLeft<4>(high));
    hn::StoreU(hn::TruncateTo(LaneBytes(), hn::BitCast(LaneWords(), both)), LaneBytes(), to + i);
  }
}

// Encodes a block whose factors are known. A block whose codes are all 0 may hold NaN, which has no
// nearest integer.
template <typename T>
HWY_INLINE void encode_block(WireForm form, const WireFactors& factors, const T* numbers,
                             const WireBlock& to) {
  *to.scale = factors.scale;
  if (factors.to_code == 0) {
    const int zeros = form == WireForm::kInt4 ? kInt4Offset | kInt4Offset << 4 : 0;
    std::memset(to.codes, zeros, static_cast<std::size_t>(wire_code_bytes(form)));
    return;
  }
  const Vec to_code = splat(factors.to_code);
  store_codes(
      form,
      [=](std::int64_t i)
          TERRACE_VECTOR_BODY { return hn::NearestInt(hn::Mul(load(numbers + i), to_code)); },
      to.codes);
}

// Encodes a block, puts what its codes lose in place of its numbers, and returns the largest
// magnitude of that.
HWY_INLINE std::uint32_t encode_and_lose(WireForm form, const WireFactors& factors,
                                         BlockNumbers& numbers, const WireBlock& to) {
  if (factors.to_code == 0) {
    encode_block(form, factors, numbers.at, to);
    return largest_bits(numbers.at);
  }
  *to.scale = factors.scale;
  const Vec to_code = splat(factors.to_code);
  const Vec scale = splat(factors.scale);
  WordVec largest = hn::Zero(LaneWords());
  store_codes(
      form,
      [&](std::int64_t i) TERRACE_VECTOR_BODY {
        const Vec number = hn::Load(Lanes(), numbers.at + i);
        const IntegerVec codes = hn::NearestInt(hn::Mul(number, to_code));
        const Vec lost = hn::Sub(number, hn::Mul(hn::ConvertTo(Lanes(), codes), scale));
        hn::Store(lost, Lanes(), numbers.at + i);
        largest = hn::Max(largest, magnitude_words(lost));
        return codes;
      },
      to.codes);
  return largest_lane(largest);
}

template <typename T>
HWY_INLINE void encode_with_errors(WireForm form, const T* source, const WireBlock& to,
                                   const WireBlock& errors) {
  BlockNumbers numbers;
  WordVec largest = hn::Zero(LaneWords());
  decode_block(WireForm::kInt8, errors, [&](std::int64_t i, Vec lost) TERRACE_VECTOR_BODY {
    const Vec number = hn::Add(load(source + i), lost);
    hn::Store(number, Lanes(), numbers.at + i);
    largest = hn::Max(largest, magnitude_words(number));
  });
  const WireFactors factors = wire_factors(form, largest_lane(largest));
  const std::uint32_t lost = encode_and_lose(form, factors, numbers, to);
  if (factors.is_nan()) return;
  encode_block(WireForm::kInt8, wire_factors(WireForm::kInt8, lost), numbers.at, errors);
}

template <typename T>
HWY_INLINE void encode_as(const EncodeWire& op, std::int64_t begin, std::int64_t end) {
  const WireRows rows = wire_rows_of(op);
  const WireRows errors = wire_errors_of(op);
  for (std::int64_t block = begin; block < end; ++block) {
    const T* const source = op.source.as<const T>() + block * kWireBlock;
    const WireBlock to = rows.block(block / rows.row_blocks, block % rows.row_blocks);
    if (errors.data != nullptr) {
      encode_with_errors(op.form, source, to, errors.block(0, block));
    } else {
      encode_block(op.form, wire_factors(op.form, largest_bits(source)), source, to);
    }
  }
}

void encode_any(const EncodeWire& op, std::int64_t begin, std::int64_t end) {
  if (op.source.dtype == DType::kF32) return encode_as<float>(op, begin, end);
  encode_as<Bf16>(op, begin, end);
}

template <typename T>
HWY_INLINE void decode_to(const WireRows& rows, std::int64_t row, std::int64_t at, T* target) {
  decode_block(rows.form, rows.block(row, at),
               [=](std::int64_t i, Vec numbers)
                   TERRACE_VECTOR_BODY { store(numbers, target + i); });
}

template <typename T>
HWY_INLINE void decode_as(const DecodeWire& op, std::int64_t begin, std::int64_t end) {
  const WireRows rows = wire_rows_of(op);
  for (std::int64_t block = begin; block < end; ++block) {
    decode_to(rows, block / rows.row_blocks, block % rows.row_blocks,
              op.target.as<T>() + block * kWireBlock);
  }
}

void decode_any(const DecodeWire& op, std::int64_t begin, std::int64_t end) {
  if (op.target.dtype == DType::kF32) return decode_as<float>(op, begin, end);
  decode_as<Bf16>(op, begin, end);
}

// Adds block `at` of two or more rows.
template <typename T>
HWY_INLINE void sum_block(const WireRows& rows, std::int64_t at, T* target) {
  BlockNumbers sum;
  decode_to(rows, 0, at, sum.at);
  for (std::int64_t row = 1; row + 1 < rows.rows; ++row) {
    decode_block(rows.form, rows.block(row, at),
                 [&](std::int64_t i, Vec numbers) TERRACE_VECTOR_BODY {
                   hn::Store(hn::Add(hn::Load(Lanes(), sum.at + i), numbers), Lanes(), sum.at + i);
                 });
  }
  decode_block(rows.form, rows.block(rows.rows - 1, at),
               [&](std::int64_t i, Vec numbers) TERRACE_VECTOR_BODY {
                 store(hn::Add(hn::Load(Lanes(), sum.at + i), numbers), target + i);
               });
}

template <typename T>
HWY_INLINE void sum_as(const SumWire& op, std::int64_t begin, std::int64_t end) {
  const WireRows rows = wire_rows_of(op);
  for (std::int64_t block = begin; block < end; ++block) {
    T* const target = op.target.as<T>() + block * kWireBlock;
    if (rows.rows == 1) {
      decode_to(rows, 0, block, target);
    } else {
      sum_block(rows, block, target);
    }
  }
}

void sum_any(const SumWire& op, std::int64_t begin, std::int64_t end) {
  if (op.target.dtype == DType::kF32) return sum_as<float>(op, begin, end);
  sum_as<Bf16>(op, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(encode_any);
HWY_EXPORT(decode_any);
HWY_EXPORT(sum_any);

namespace {

constexpr std::int64_t kTaskBlocks = kElementBlock / kWireBlock;

void check_type(const TensorView& numbers) {
  TERRACE_CHECK(numbers.dtype == DType::kF32 || numbers.dtype == DType::kBF16);
}

}  // namespace

void cpu_encode_wire(const KernelContext& context, const EncodeWire& op) {
  check_type(op.source);
  for_each_block(context, wire_rows_of(op).blocks(), kTaskBlocks,
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(encode_any)(op, begin, end);
                 });
}

void cpu_decode_wire(const KernelContext& context, const DecodeWire& op) {
  check_type(op.target);
  for_each_block(context, wire_rows_of(op).blocks(), kTaskBlocks,
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(decode_any)(op, begin, end);
                 });
}

void cpu_sum_wire(const KernelContext& context, const SumWire& op) {
  check_type(op.target);
  for_each_block(
      context, wire_rows_of(op).row_blocks, kTaskBlocks,
      [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(sum_any)(op, begin, end); });
}

}  // namespace terrace
#endif  // HWY_ONCE
