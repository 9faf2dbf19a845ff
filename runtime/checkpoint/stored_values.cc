#include "runtime/checkpoint/stored_values.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "base/half_arrays.h"

namespace terrace {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

template <typename T>
void read_halves(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::uint64_t byte,
                 std::span<float> out) {
  const std::size_t most = std::min(out.size(), kBufferBytes / sizeof(T));
  const auto buffer = std::make_unique_for_overwrite<T[]>(most);
  while (!out.empty()) {
    const std::span<T> part(buffer.get(), std::min(most, out.size()));
    file.read(tensor, byte, std::as_writable_bytes(part));
    to_floats(std::span<const T>(part), out.first(part.size()));
    out = out.subspan(part.size());
    byte += part.size_bytes();
  }
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

std::vector<std::uint64_t> stored_shape(const ParameterTensor& tensor) {
  if (tensor.stored_elements) {
    const std::vector<std::int64_t>& shape = tensor.stored_elements->shape;
    return {shape.begin(), shape.end()};
  }
  const auto rows = static_cast<std::uint64_t>(tensor.stored_rows);
  const auto columns = static_cast<std::uint64_t>(tensor.columns);
  if (tensor.is_vector) return {rows};
  if (tensor.stored_matrices > 0) {
    const auto matrices = static_cast<std::uint64_t>(tensor.stored_matrices);
    return {matrices, rows / matrices, columns};
  }
  if (tensor.stored_transposed) return {columns, rows};
  return {rows, columns};
}

void read_values(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                 std::span<float> out) {
  const std::uint64_t byte = static_cast<std::uint64_t>(first) * bits_of(tensor.type) / 8;
  switch (tensor.type) {
    case SafetensorsType::kF32:
      return file.read(tensor, byte, std::as_writable_bytes(out));
    case SafetensorsType::kF16:
      return read_halves<Fp16>(file, tensor, byte, out);
    case SafetensorsType::kBF16:
      return read_halves<Bf16>(file, tensor, byte, out);
    default:
      TERRACE_CHECK(is_loadable(tensor.type));
  }
}

void read_addends(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                  std::span<float> out) {
  std::vector<float> whole(static_cast<std::size_t>(tensor.elements()));
  read_values(file, tensor, 0, whole);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(first) + i;
    float rest = whole[at % whole.size()];
    for (std::size_t addend = 0; addend < at / whole.size(); ++addend) {
      rest -= to_float(to_bf16_nearest_even(rest));
    }
    out[i] = to_float(to_bf16_nearest_even(rest));
  }
}

}  // namespace terrace
