#include <algorithm>

#include "base/check.h"
#include "runtime/model/parameter_layout.h"

// Questions about the layout of a unit.
namespace terrace {

const ParameterTensor* UnitLayout::find(ParameterKind wanted, std::int32_t expert) const {
  const auto found = std::ranges::find_if(tensors, [&](const ParameterTensor& tensor) {
    return tensor.kind == wanted && tensor.expert == expert;
  });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t UnitLayout::decayed_elements() const {
  std::int64_t decayed = 0;
  bool others = false;
  for (const ParameterTensor& tensor : tensors) {
    if (!tensor.trainable || is_of_expert(tensor.kind)) break;  // so are those that follow
    TERRACE_CHECK(!tensor.decay || !others);                    // matrices come first
    others = others || !tensor.decay;
    if (tensor.decay) decayed = tensor.offset + tensor.elements();
  }
  return decayed;
}

std::vector<ElementSpan> UnitLayout::trained_spans() const {
  std::vector<ElementSpan> spans;
  for (const ParameterTensor& tensor : tensors) {
    if (!tensor.trainable) continue;
    if (spans.empty() || spans.back().end != tensor.offset) {
      spans.push_back({tensor.offset, tensor.offset});
    }
    spans.back().end += tensor.elements();
  }
  return spans;
}

std::int64_t UnitLayout::trained_count() const {
  std::int64_t count = 0;
  for (const ElementSpan& span : trained_spans()) count += span.end - span.begin;
  return count;
}

}  // namespace terrace
