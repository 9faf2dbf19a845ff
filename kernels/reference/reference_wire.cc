#include <algorithm>
#include <array>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/wire_code.h"

namespace terrace::reference {
namespace {

using BlockNumbers = std::array<float, kWireBlock>;

int code_at(WireForm form, const std::uint8_t* codes, int i) {
  if (form == WireForm::kInt8) return static_cast<std::int8_t>(codes[i]);
  const int both = codes[i % kHalfWireBlock];
  return (i < kHalfWireBlock ? both & 15 : both >> 4) - kInt4Offset;
}

void encode_block(WireForm form, const WireFactors& factors, const BlockNumbers& numbers,
                  const WireBlock& to) {
  *to.scale = factors.scale;
  if (form == WireForm::kInt8) {
    for (int i = 0; i < kWireBlock; ++i) {
      to.codes[i] = static_cast<std::uint8_t>(wire_code(factors, numbers[i]));
    }
    return;
  }
  for (int i = 0; i < kHalfWireBlock; ++i) {
    const int low = wire_code(factors, numbers[i]) + kInt4Offset;
    const int high = wire_code(factors, numbers[kHalfWireBlock + i]) + kInt4Offset;
    to.codes[i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

BlockNumbers decode_block(WireForm form, const WireBlock& from) {
  BlockNumbers numbers;
  for (int i = 0; i < kWireBlock; ++i) {
    numbers[i] = wire_number(*from.scale, code_at(form, from.codes, i));
  }
  return numbers;
}

std::uint32_t largest_bits(const BlockNumbers& numbers) {
  std::uint32_t largest = 0;
  for (const float number : numbers) largest = std::max(largest, magnitude_bits(number));
  return largest;
}

// Encodes the difference between the numbers and what their codes stand for.
void keep_lost(const WireFactors& factors, const BlockNumbers& numbers, const WireBlock& errors) {
  BlockNumbers lost;
  for (int i = 0; i < kWireBlock; ++i) {
    lost[i] = numbers[i] - wire_number(factors.scale, wire_code(factors, numbers[i]));
  }
  encode_block(WireForm::kInt8, wire_factors(WireForm::kInt8, largest_bits(lost)), lost, errors);
}

template <typename T>
BlockNumbers read_block(const TensorView& source, std::int64_t block) {
  BlockNumbers numbers;
  for (int i = 0; i < kWireBlock; ++i) {
    numbers[i] = static_cast<float>(load(source.as<T>()[block * kWireBlock + i]));
  }
  return numbers;
}

template <typename T>
void write_block(const TensorView& target, std::int64_t block, const BlockNumbers& numbers) {
  for (int i = 0; i < kWireBlock; ++i) {
    target.as<T>()[block * kWireBlock + i] = round_to<T>(numbers[i]);
  }
}

}  // namespace

void encode_wire(const KernelContext&, const EncodeWire& op) {
  const WireRows rows = wire_rows_of(op);
  const WireRows errors = wire_errors_of(op);
  with_compute_type(op.source.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t block = 0; block < rows.blocks(); ++block) {
      BlockNumbers numbers = read_block<T>(op.source, block);
      if (!op.errors.empty()) {
        const BlockNumbers lost = decode_block(errors.form, errors.block(0, block));
        for (int i = 0; i < kWireBlock; ++i) numbers[i] += lost[i];
      }
      const WireFactors factors = wire_factors(op.form, largest_bits(numbers));
      encode_block(op.form, factors, numbers,
                   rows.block(block / rows.row_blocks, block % rows.row_blocks));
      if (!op.errors.empty() && !factors.is_nan()) {
        keep_lost(factors, numbers, errors.block(0, block));
      }
    }
  });
}

void decode_wire(const KernelContext&, const DecodeWire& op) {
  const WireRows rows = wire_rows_of(op);
  with_compute_type(op.target.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t block = 0; block < rows.blocks(); ++block) {
      const WireBlock from = rows.block(block / rows.row_blocks, block % rows.row_blocks);
      write_block<T>(op.target, block, decode_block(op.form, from));
    }
  });
}

void sum_wire(const KernelContext&, const SumWire& op) {
  const WireRows rows = wire_rows_of(op);
  with_compute_type(op.target.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t block = 0; block < rows.row_blocks; ++block) {
      BlockNumbers sum = decode_block(op.form, rows.block(0, block));
      for (std::int64_t row = 1; row < rows.rows; ++row) {
        const BlockNumbers numbers = decode_block(op.form, rows.block(row, block));
        for (int i = 0; i < kWireBlock; ++i) sum[i] += numbers[i];
      }
      write_block<T>(op.target, block, sum);
    }
  });
}

}  // namespace terrace::reference
