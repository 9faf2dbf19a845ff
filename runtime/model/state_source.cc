#include "runtime/model/state_source.h"

#include <algorithm>

namespace terrace {

void for_each_tensor_part(
    const UnitLayout& unit, std::int64_t begin, std::span<float> out,
    FunctionRef<void(const ParameterTensor&, std::int64_t, std::span<float>)> visit) {
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t from = std::max(begin, tensor.offset);
    const std::int64_t to = std::min(end, tensor.offset + tensor.elements());
    if (from >= to) continue;
    visit(tensor, from - tensor.offset,
          out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
  }
  const std::int64_t padding = std::max(begin, unit.elements);
  if (padding < end) {
    const auto tail = out.subspan(static_cast<std::size_t>(padding - begin));
    std::fill(tail.begin(), tail.end(), 0.0F);
  }
}

}  // namespace terrace
