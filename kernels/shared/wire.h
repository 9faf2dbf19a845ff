#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"
#include "kernels/shared/norm.h"
#include "kernels/wire_code.h"

// Codes for the way between ranks, with the bits of the reference. A warp encodes or decodes a
// block of 256 numbers. Each of its threads has four neighbours in the first half of the block and
// four in the second half, so that it reads and writes whole words of codes in both forms.
namespace terrace::shared {

inline constexpr int kWireThreads = 256;
inline constexpr int kWireWarps = kWireThreads / kWarp;  // blocks of numbers of a block of threads
inline constexpr int kWireQuad = 4;
using WireNumbers = Floats<2 * kWireQuad>;  // of a thread: its two quads

static_assert(kWarp * kWireQuad == kHalfWireBlock);

// Returns a thread's word of the codes. In 4 bits it has one; in 8 bits it has one in each half.
TERRACE_KERNEL inline std::uint32_t& wire_word(const WireBlock& block, int lane, int half) {
  return reinterpret_cast<std::uint32_t*>(block.codes)[half * kWarp + lane];
}

template <WireForm Form>
TERRACE_KERNEL void store_wire_codes(const WireBlock& to, int lane, const WireFactors& factors,
                                     const WireNumbers& numbers) {
  std::uint32_t words[2] = {0, 0};
  TERRACE_UNROLL
  for (int i = 0; i < kWireQuad; ++i) {
    const int low = wire_code(factors, numbers.at[i]);
    const int high = wire_code(factors, numbers.at[kWireQuad + i]);
    if constexpr (Form == WireForm::kInt4) {
      words[0] |= static_cast<std::uint32_t>((low + kInt4Offset) | (high + kInt4Offset) << 4)
                  << (8 * i);
    } else {
      words[0] |= (static_cast<std::uint32_t>(low) & 0xffU) << (8 * i);
      words[1] |= (static_cast<std::uint32_t>(high) & 0xffU) << (8 * i);
    }
  }
  wire_word(to, lane, 0) = words[0];
  if constexpr (Form != WireForm::kInt4) wire_word(to, lane, 1) = words[1];
  if (lane == 0) *to.scale = factors.scale;
}

template <WireForm Form>
TERRACE_KERNEL WireNumbers load_wire_numbers(const WireBlock& from, int lane) {
  const float scale = *from.scale;
  const std::uint32_t first = wire_word(from, lane, 0);
  WireNumbers numbers;
  if constexpr (Form == WireForm::kInt4) {
    TERRACE_UNROLL
    for (int i = 0; i < kWireQuad; ++i) {
      const auto both = static_cast<int>(first >> (8 * i) & 0xffU);
      numbers.at[i] = wire_number(scale, (both & 15) - kInt4Offset);
      numbers.at[kWireQuad + i] = wire_number(scale, (both >> 4) - kInt4Offset);
    }
  } else {
    const std::uint32_t second = wire_word(from, lane, 1);
    TERRACE_UNROLL
    for (int i = 0; i < kWireQuad; ++i) {
      numbers.at[i] = wire_number(scale, static_cast<std::int8_t>(first >> (8 * i) & 0xffU));
      numbers.at[kWireQuad + i] =
          wire_number(scale, static_cast<std::int8_t>(second >> (8 * i) & 0xffU));
    }
  }
  return numbers;
}

TERRACE_KERNEL inline std::uint32_t largest_magnitude(const WireNumbers& numbers) {
  std::uint32_t largest = 0;
  TERRACE_UNROLL
  for (int i = 0; i < 2 * kWireQuad; ++i) {
    const std::uint32_t bits = magnitude_bits(numbers.at[i]);
    largest = largest < bits ? bits : largest;
  }
  return largest;
}

template <WireForm Form, typename T>
struct EncodeWireKernel {
  const T* source;
  WireRows rows;
  Divisor row_blocks;
  WireRows errors;
  bool aligned;

  TERRACE_KERNEL WireNumbers load(std::int64_t block, int lane) const {
    const T* const from = source + block * kWireBlock + lane * kWireQuad;
    const auto first = load_words<T, kWireQuad>(from, kWireQuad, aligned);
    const auto second = load_words<T, kWireQuad>(from + kHalfWireBlock, kWireQuad, aligned);
    WireNumbers numbers;
    TERRACE_UNROLL
    for (int i = 0; i < kWireQuad; ++i) {
      numbers.at[i] = first.value(i);
      numbers.at[kWireQuad + i] = second.value(i);
    }
    if (errors.data == nullptr) return numbers;
    return numbers + load_wire_numbers<WireForm::kInt8>(errors.block(0, block), lane);
  }

  // Replaces the numbers by the errors of their codes, and returns the largest magnitude of the
  // errors; infinity for a block that is NaN, which has nothing to keep.
  TERRACE_KERNEL static std::uint32_t take_lost(const WireFactors& factors, WireNumbers& numbers) {
    if (factors.is_nan()) return kInfinityBits;
    TERRACE_UNROLL
    for (int i = 0; i < 2 * kWireQuad; ++i) {
      const float kept = wire_number(factors.scale, wire_code(factors, numbers.at[i]));
      numbers.at[i] = numbers.at[i] - kept;
    }
    return largest_magnitude(numbers);
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    typename Block::template PerThread<WireNumbers> numbers;
    typename Block::template PerThread<std::uint32_t> largest;
    const std::int64_t first = block.index() * kWireWarps;
    block.for_each_thread([&](int t) {
      largest[t] = 0;
      if (first + t / kWarp >= rows.blocks()) return;
      numbers[t] = load(first + t / kWarp, t % kWarp);
      largest[t] = largest_magnitude(numbers[t]);
    });
    block.warp_max(largest);
    block.for_each_thread([&](int t) {
      const std::int64_t at = first + t / kWarp;
      if (at >= rows.blocks()) return;
      const std::int64_t row = row_blocks.quotient(at);
      const WireFactors factors = wire_factors(Form, largest[t]);
      store_wire_codes<Form>(rows.block(row, at - row * rows.row_blocks), t % kWarp, factors,
                             numbers[t]);
      if (errors.data != nullptr) largest[t] = take_lost(factors, numbers[t]);
    });
    if (errors.data == nullptr) return;
    block.warp_max(largest);
    block.sync();  // the scales of all errors are read
    block.for_each_thread([&](int t) {
      const std::int64_t at = first + t / kWarp;
      if (at >= rows.blocks() || largest[t] >= kInfinityBits) return;
      store_wire_codes<WireForm::kInt8>(errors.block(0, at), t % kWarp,
                                        wire_factors(WireForm::kInt8, largest[t]), numbers[t]);
    });
  }
};

// Decodes each block of the target, or adds it over `summed` rows.
template <WireForm Form, typename T>
struct DecodeWireKernel {
  WireRows rows;
  Divisor row_blocks;
  std::int64_t blocks;  // of the target
  std::int64_t summed;
  T* target;
  bool aligned;

  TERRACE_KERNEL void store(std::int64_t block, int lane, const WireNumbers& numbers) const {
    T* const to = target + block * kWireBlock + lane * kWireQuad;
    Pack<T, kWireQuad> first;
    Pack<T, kWireQuad> second;
    TERRACE_UNROLL
    for (int i = 0; i < kWireQuad; ++i) {
      first.at[i] = round_to<T>(numbers.at[i]);
      second.at[i] = round_to<T>(numbers.at[kWireQuad + i]);
    }
    store_pack(to, first, kWireQuad, aligned);
    store_pack(to + kHalfWireBlock, second, kWireQuad, aligned);
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      const std::int64_t to = block.index() * kWireWarps + t / kWarp;
      if (to >= blocks) return;
      const std::int64_t row = row_blocks.quotient(to);
      const std::int64_t at = to - row * rows.row_blocks;
      WireNumbers sum = load_wire_numbers<Form>(rows.block(row, at), t % kWarp);
      for (std::int64_t more = 1; more < summed; ++more) {
        sum = sum + load_wire_numbers<Form>(rows.block(row + more, at), t % kWarp);
      }
      store(to, t % kWarp, sum);
    });
  }
};

template <typename Body>
void with_wire_form(WireForm form, const Body& body) {
  if (form == WireForm::kInt4) return body.template operator()<WireForm::kInt4>();
  body.template operator()<WireForm::kInt8>();
}

inline Divisor divisor_of_wire_rows(const WireRows& rows) {
  return {std::max<std::int64_t>(1, rows.row_blocks), rows.blocks()};
}

template <typename Launcher>
void encode_wire(Launcher& launcher, const EncodeWire& op) {
  const WireRows rows = wire_rows_of(op);
  const WireRows errors = wire_errors_of(op);
  with_compute_type(op.source.dtype, [&]<typename T>(std::type_identity<T>) {
    with_wire_form(op.form, [&]<WireForm Form>() {
      const EncodeWireKernel<Form, T> kernel{op.source.as<T>(), rows, divisor_of_wire_rows(rows),
                                             errors, may_load_packs({op.source.data}, 0)};
      launcher.template launch<kWireThreads>("encode_wire", kernel,
                                             divide_up(rows.blocks(), kWireWarps));
    });
  });
}

template <typename Launcher>
void launch_decode_wire(Launcher& launcher, const WireRows& rows, std::int64_t summed,
                        const TensorView& target) {
  const std::int64_t blocks = target.elements() / kWireBlock;
  with_compute_type(target.dtype, [&]<typename T>(std::type_identity<T>) {
    with_wire_form(rows.form, [&]<WireForm Form>() {
      const DecodeWireKernel<Form, T> kernel{rows,           divisor_of_wire_rows(rows),
                                             blocks,         summed,
                                             target.as<T>(), may_load_packs({target.data}, 0)};
      launcher.template launch<kWireThreads>("decode_wire", kernel, divide_up(blocks, kWireWarps));
    });
  });
}

template <typename Launcher>
void decode_wire(Launcher& launcher, const DecodeWire& op) {
  launch_decode_wire(launcher, wire_rows_of(op), 1, op.target);
}

template <typename Launcher>
void sum_wire(Launcher& launcher, const SumWire& op) {
  const WireRows rows = wire_rows_of(op);
  launch_decode_wire(launcher, rows, rows.rows, op.target);
}

}  // namespace terrace::shared
