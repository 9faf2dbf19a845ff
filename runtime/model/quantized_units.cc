#include "runtime/model/quantized_units.h"

#include <algorithm>

#include "base/check.h"
#include "runtime/model/matrix_quantizer.h"

namespace terrace {

void QuantizedUnits::read(std::int32_t unit, std::int64_t begin, std::span<std::byte> out,
                          WorkerArena& workers) {
  const UnitLayout& layout = own_.at(static_cast<std::size_t>(unit));
  const std::int64_t first = begin * element_bytes_;
  const std::int64_t end = first + std::ssize(out);
  const bool are_experts = begin >= layout.shared_elements();
  TERRACE_CHECK(!are_experts || layout.experts.are_quantized);
  TERRACE_CHECK_LE(are_experts ? layout.shared_elements() : layout.quantized.begin, begin);
  TERRACE_CHECK_LE(end,
                   (are_experts ? layout.padded_elements : layout.quantized.end) * element_bytes_);
  std::ranges::fill(out, std::byte{0});
  for (const ParameterTensor& tensor : layout.tensors) {
    if (!tensor.quantized) continue;
    const std::int64_t of_tensor = tensor.offset * element_bytes_;
    const std::int64_t from = std::max(first, of_tensor);
    const std::int64_t to = std::min(end, of_tensor + tensor.quantized->size_bytes());
    if (from >= to) continue;
    const std::vector<std::byte>& bytes = bytes_of(unit, tensor, workers);
    std::copy(bytes.begin() + (from - of_tensor), bytes.begin() + (to - of_tensor),
              out.begin() + (from - first));
  }
}

const std::vector<std::byte>& QuantizedUnits::bytes_of(std::int32_t unit,
                                                       const ParameterTensor& tensor,
                                                       WorkerArena& workers) {
  const std::pair key(unit, tensor.offset);
  if (last_ == key) return bytes_;
  const UnitLayout& whole = whole_.at(static_cast<std::size_t>(unit));
  const std::int64_t of_whole = whole.find(tensor.kind, tensor.expert)->offset;
  const auto numbers = [&](std::int64_t at, std::span<float> out) {
    source_.read(StateField::kMaster, whole, of_whole + at, out);
  };
  last_ = {-1, 0};  // until it is complete
  bytes_ = quantize_matrix(tensor.quantized.value(), numbers, workers);
  last_ = key;
  return bytes_;
}

}  // namespace terrace
