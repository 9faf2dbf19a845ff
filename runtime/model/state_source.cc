#include "runtime/model/state_source.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

void for_each_tensor_part(
    const UnitLayout& unit, std::int64_t begin, std::span<float> out,
    FunctionRef<void(const ParameterTensor&, std::int64_t, std::span<float>)> visit) {
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from));
  };
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t from = std::max(begin, tensor.offset);
    const std::int64_t to = std::min(end, tensor.offset + tensor.place_elements());
    TERRACE_CHECK(!tensor.quantized || from >= to);
    if (from < to) visit(tensor, from - tensor.offset, part(from, to));
  }
  for (const ElementSpan& padding : unit.padding) {
    const std::int64_t from = std::max(begin, padding.begin);
    const std::int64_t to = std::min(end, padding.end);
    if (from < to) std::ranges::fill(part(from, to), 0.0F);
  }
}

void TensorPartState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                           std::span<float> out) const {
  const UnitLayout& whole = layout_.at(static_cast<std::size_t>(unit.index));
  for_each_tensor_part(
      unit, begin, out,
      [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        read_part(field, whole, tensor.slice, first, part);
      });
}

// Reads short runs in one call, together with the elements between them.
void TensorPartState::read_part(StateField field, const UnitLayout& whole, const TensorSlice& slice,
                                std::int64_t first, std::span<float> out) const {
  constexpr std::int64_t kShortRun = 4096;
  const auto present = std::min<std::int64_t>(static_cast<std::int64_t>(out.size()),
                                              slice.elements_of(slice.rank) - first);
  std::ranges::fill(out.subspan(static_cast<std::size_t>(std::max<std::int64_t>(present, 0))),
                    0.0F);
  const auto whole_of = [&](std::int64_t i) { return slice.whole_of(first + i, slice.rank); };
  if (slice.run >= kShortRun || slice.ranks == 1) {
    for (std::int64_t i = 0; i < present;) {
      const std::int64_t count = std::min(present - i, slice.run - (first + i) % slice.run);
      source_.read(field, whole, slice.whole_offset + whole_of(i),
                   out.subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(count)));
      i += count;
    }
    return;
  }
  if (present <= 0) return;
  const std::int64_t begin = whole_of(0);
  std::vector<float> between(static_cast<std::size_t>(whole_of(present - 1) + 1 - begin));
  source_.read(field, whole, slice.whole_offset + begin, between);
  for (std::int64_t i = 0; i < present; ++i) {
    out[static_cast<std::size_t>(i)] = between[static_cast<std::size_t>(whole_of(i) - begin)];
  }
}

}  // namespace terrace
