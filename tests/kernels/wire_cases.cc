#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/kernels/op_case.h"

// Encoding and decoding for the way between ranks: bit for bit. A sum or product with NaN has
// different bits on different processors, so only encoded numbers have NaN, and no decoded ones.
namespace terrace::test {
namespace {

struct WireShape {
  WireForm form;
  std::int64_t P, row_blocks;  // rows of codes, and blocks of each

  std::int64_t numbers() const { return P * row_blocks * kWireBlock; }
  std::int64_t row_bytes() const {
    return static_cast<std::int64_t>(coded_bytes(form, row_blocks * kWireBlock));
  }
  std::int64_t error_bytes() const {
    return static_cast<std::int64_t>(coded_bytes(WireForm::kInt8, numbers()));
  }
  std::string text() const {
    return fmt::format("{} P={} blocks={}", name_of(form), P, row_blocks);
  }
};

// Codes lie in tensors of i32, because these begin on a boundary of 4.
HostTensor code_tensor(std::int64_t bytes) { return {DType::kI32, shape(bytes / 4)}; }

// Returns blocks of all kinds: of ordinary numbers in different sizes, zeros, numbers between two
// codes, numbers below and near the least magnitude, the largest numbers, infinities and NaN.
HostTensor numbers_to_encode(DType type, std::int64_t count, Random& random) {
  HostTensor numbers(type, shape(count));
  constexpr double kBlockSizes[] = {1, 1e-3, 3e4, 127, 0, 0x1p-101, 0x1p-99, 1e38};
  constexpr std::int64_t kKinds = std::size(kBlockSizes);
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.set(i, kBlockSizes[i / kWireBlock % kKinds] * random.uniform());
  }
  for (std::int64_t block = 0; block < count / kWireBlock; ++block) {
    const std::int64_t first = block * kWireBlock;
    if (block % kKinds == 3) {  // the scale is 1 in int8, and 127 / 7 in int4
      numbers.set(first + 200, -127);
      for (std::int64_t i = 0; i < 100; ++i) numbers.set(first + i, static_cast<double>(i) - 49.5);
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (block % 19 == 9) numbers.set(first + 77, std::numeric_limits<double>::quiet_NaN());
    if (block % 19 == 10) numbers.set(first + 255, -kInfinity);
    if (block % 19 == 11) numbers.set(first, static_cast<double>(0x1.fffffep127F));
    if (block % 19 == 12) numbers.set(first + 3, 0x1p-100);
  }
  return numbers;
}

// Returns rows of random codes, with scales of which one in eight is 0.
HostTensor random_codes(WireForm form, std::int64_t P, std::int64_t row_blocks, Random& random) {
  const auto row_bytes = static_cast<std::int64_t>(coded_bytes(form, row_blocks * kWireBlock));
  HostTensor tensor = code_tensor(P * row_bytes);
  std::byte* const bytes = tensor.view().data;
  for (std::int64_t i = 0; i < P * row_bytes; ++i) {
    bytes[i] = static_cast<std::byte>(random.below(256));
  }
  for (std::int64_t row = 0; row < P; ++row) {
    for (std::int64_t block = 0; block < row_blocks; ++block) {
      const auto scale =
          random.below(8) == 0 ? 0.0F : static_cast<float>(std::abs(random.uniform()) / 64);
      std::memcpy(bytes + row * row_bytes + block * 4, &scale, sizeof(scale));
    }
  }
  return tensor;
}

OpCase encode_wire_case(DType type, const WireShape& s, bool keeps_errors, Random& random) {
  OpCase c;
  c.name = fmt::format("encode_wire {} {} errors={}", name_of(type), s.text(), keeps_errors);
  c.inputs.push_back(numbers_to_encode(type, s.numbers(), random));
  c.inputs.push_back(random_codes(WireForm::kInt8, 1, s.P * s.row_blocks, random));
  c.outputs = {{.dtype = DType::kI32, .shape = shape(s.P * s.row_bytes() / 4)}};
  if (keeps_errors) {
    c.outputs.push_back({.dtype = DType::kI32,
                         .shape = shape(s.error_bytes() / 4),
                         .kind = OutputKind::kInPlace,
                         .same_as = 1});
  }
  set_op(c, &KernelTable::encode_wire, [=](const Views& in, const Views& out, GradientMode) {
    EncodeWire op{s.form, in[0], view(out[0].data, DType::kU8, s.P, s.row_bytes()), {}};
    if (keeps_errors) op.errors = view(out[1].data, DType::kU8, s.error_bytes());
    return op;
  });
  return c;
}

OpCase decode_wire_case(DType type, const WireShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("decode_wire {} {}", name_of(type), s.text());
  c.inputs.push_back(random_codes(s.form, s.P, s.row_blocks, random));
  c.outputs = {{.dtype = type, .shape = shape(s.numbers())}};
  set_op(c, &KernelTable::decode_wire, [=](const Views& in, const Views& out, GradientMode) {
    return DecodeWire{s.form, view(in[0].data, DType::kU8, s.P, s.row_bytes()), out[0]};
  });
  return c;
}

OpCase sum_wire_case(DType type, const WireShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("sum_wire {} {}", name_of(type), s.text());
  c.inputs.push_back(random_codes(s.form, s.P, s.row_blocks, random));
  c.outputs = {{.dtype = type, .shape = shape(s.row_blocks * kWireBlock)}};
  set_op(c, &KernelTable::sum_wire, [=](const Views& in, const Views& out, GradientMode) {
    return SumWire{s.form, view(in[0].data, DType::kU8, s.P, s.row_bytes()), out[0]};
  });
  return c;
}

}  // namespace

std::vector<OpCase> wire_cases(DType compute) {
  Random random(21);
  std::vector<OpCase> cases;
  std::vector<DType> types = {compute};
  if (compute != DType::kF32) types.push_back(DType::kF32);  // gradients beside any compute type
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    // The last has more blocks than a task of the CPU's workers.
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
        {1, 1}, {2, 3}, {3, 7}, {1, 20}, {2, 130}};
    for (const auto& [P, row_blocks] : kShapes) {
      const WireShape s = {form, P, row_blocks};
      for (const DType type : types) {
        cases.push_back(encode_wire_case(type, s, false, random));
        cases.push_back(encode_wire_case(type, s, true, random));
        cases.push_back(decode_wire_case(type, s, random));
        cases.push_back(sum_wire_case(type, s, random));
      }
    }
  }
  return cases;
}

}  // namespace terrace::test
