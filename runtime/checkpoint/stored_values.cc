#include "runtime/checkpoint/stored_values.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/half.h"

namespace terrace {
namespace {

constexpr std::size_t kValueBufferBytes = 1 << 20;

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  }
  if (magnitude < 0x400U) {  // zero, subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1.0p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
}

}  // namespace

bool is_loadable(SafetensorsType type) {
  return type == SafetensorsType::kF32 || type == SafetensorsType::kBF16 ||
         type == SafetensorsType::kF16;
}

DType dtype_of_values(SafetensorsType type) {
  if (type == SafetensorsType::kF32) return DType::kF32;
  return type == SafetensorsType::kF16 ? DType::kF16 : DType::kBF16;
}

SafetensorsType type_in_file(DType dtype) {
  if (dtype == DType::kF32) return SafetensorsType::kF32;
  return dtype == DType::kF16 ? SafetensorsType::kF16 : SafetensorsType::kBF16;
}

void read_values(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                 std::span<float> out) {
  const std::uint64_t width = bits_of(tensor.type) / 8;
  auto byte = static_cast<std::uint64_t>(first) * width;
  if (tensor.type == SafetensorsType::kF32)
    return file.read(tensor, byte, std::as_writable_bytes(out));
  std::vector<std::uint16_t> buffer(std::min(out.size(), kValueBufferBytes / 2));
  while (!out.empty()) {
    const auto part = std::span(buffer).first(std::min(buffer.size(), out.size()));
    file.read(tensor, byte, std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      out[i] =
          tensor.type == SafetensorsType::kBF16 ? to_float(Bf16{part[i]}) : half_to_float(part[i]);
    }
    out = out.subspan(part.size());
    byte += part.size_bytes();
  }
}

}  // namespace terrace
