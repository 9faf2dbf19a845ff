#include "runtime/model/unit_arrangement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// Returns the rank's part of a tensor: shape and slice.
ParameterTensor part_of(ParameterTensor tensor, const TensorSplit& split) {
  if (tensor.cut == TensorCut::kReplicated) return tensor;
  TensorSlice& slice = tensor.slice;
  slice.ranks = split.ranks;
  slice.rank = split.rank;
  if (tensor.cut == TensorCut::kColumns) {
    tensor.columns = split.part_of(tensor.columns);
    slice.runs = tensor.rows;
    slice.run = tensor.columns;
  } else {
    const std::int64_t group = split.part_of(tensor.rows / tensor.row_groups);
    tensor.rows = group * tensor.row_groups;
    slice.runs = tensor.row_groups;
    slice.run = group * tensor.columns;
  }
  return tensor;
}

// Sets how a rank's part of a frozen matrix of a block is kept.
void quantize(ParameterTensor& part, const BaseStorage& storage) {
  QuantizedShape shape = {.form = storage.form.value(), .elements = part.elements()};
  if (part.slice.ranks > 1) {
    TERRACE_CHECK_EQ(part.slice.run % kQuantizedBlock, 0);
    shape.run_blocks = part.slice.run / kQuantizedBlock;
    shape.ranks = part.slice.ranks;
    shape.rank = part.slice.rank;
  }
  part.quantized_elements = shape.size_bytes() / storage.element_bytes;
  part.quantized = shape;
}

// Puts the tensors of a unit one after the other, as a rank has them.
class UnitArrangement {
 public:
  UnitArrangement(const UnitLayout& whole, const TensorSplit& split, std::int32_t ranks,
                  const BaseStorage& storage)
      : whole_(whole), split_(split), storage_(storage), grain_(ranks * kBlockElements) {
    unit_.kind = whole.kind;
    unit_.index = whole.index;
  }

  UnitLayout run() {
    add_shared();
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (tensor.kind == ParameterKind::kExpertGate) add_expert(tensor.expert);
    }
    return std::move(unit_);
  }

 private:
  // Adds everything that is not of experts.
  void add_shared() {
    add_all(true);
    const bool is_last = unit_.replicated.end == unit_.elements;
    const std::int64_t trained = pad(0);
    unit_.padded_elements = trained;
    if (!unit_.replicated.empty() && is_last) unit_.replicated.end = trained;
    const bool has_frozen = std::ranges::any_of(whole_.tensors, [](const ParameterTensor& tensor) {
      return !tensor.trainable && !is_of_expert(tensor.kind);
    });
    if (!has_frozen) return;
    unit_.elements = trained;
    add_all(false);
    unit_.padded_elements = pad(trained);
    unit_.frozen_elements = unit_.padded_elements - trained;
  }

  void add_expert(std::int32_t expert) {
    const std::int64_t begin = unit_.padded_elements;
    unit_.elements = begin;
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (!is_of_expert(tensor.kind) || tensor.expert != expert) continue;
      unit_.experts.train = tensor.trainable;
      unit_.experts.are_quantized = is_quantized(tensor);
      unit_.experts.are_quantized ? add_bytes(tensor) : add(tensor);
    }
    unit_.padded_elements = pad(begin);
    unit_.experts.elements = unit_.padded_elements - begin;
    ++unit_.experts.count;
  }

  void add_all(bool trainable) {
    const auto add_those = [&](auto wanted) {
      for (const ParameterTensor& tensor : whole_.tensors) {
        const bool is_one =
            tensor.trainable == trainable && !is_quantized(tensor) && !is_of_expert(tensor.kind);
        if (is_one && wanted(tensor)) add(tensor);
      }
    };
    if (!trainable) add_quantized();
    if (split_.ranks == 1) return add_those([](const ParameterTensor&) { return true; });
    if (trainable && trains_router()) return add_with_router(add_those);
    add_those([](const ParameterTensor& t) { return t.cut != TensorCut::kReplicated; });
    const std::int64_t begin = begin_block();
    add_those([](const ParameterTensor& t) { return t.cut == TensorCut::kReplicated; });
    if (trainable) unit_.replicated = {begin, unit_.elements};
  }

  // Returns whether parameters of a layer of experts train that all ranks have, and of whose
  // gradient each has a part.
  bool trains_router() const {
    return std::ranges::any_of(whole_.tensors, [](const ParameterTensor& tensor) {
      const bool is_one = tensor.kind == ParameterKind::kRouter ||
                          tensor.kind == ParameterKind::kRouterBias ||
                          tensor.kind == ParameterKind::kShare;
      return is_one && tensor.trainable;
    });
  }

  // Weight decay applies to the first elements, and a router is a matrix that all ranks have. So
  // the vectors that are cut follow what all ranks have. There the gradients that are added over
  // ranks come first, so that they lie side by side.
  template <typename AddThose>
  void add_with_router(const AddThose& add_those) {
    const auto is_cut = [](const ParameterTensor& t) { return t.cut != TensorCut::kReplicated; };
    add_those([&](const ParameterTensor& t) { return is_cut(t) && t.decay; });
    const std::int64_t begin = begin_block();
    add_those([&](const ParameterTensor& t) { return !is_cut(t) && has_share(t); });
    add_those([&](const ParameterTensor& t) { return !is_cut(t) && !has_share(t); });
    unit_.replicated = {begin, unit_.elements};
    const auto is_late = [&](const ParameterTensor& t) {
      return is_cut(t) && !t.decay && t.trainable;
    };
    if (!std::ranges::any_of(whole_.tensors, is_late)) return;
    unit_.replicated.end = begin_block();
    add_those(is_late);
  }

  // Pads what is there so far to whole blocks, and returns where it ends.
  std::int64_t begin_block() {
    const std::int64_t end = unit_.elements;
    unit_.elements = (end + kBlockElements - 1) / kBlockElements * kBlockElements;
    if (end < unit_.elements) unit_.padding.push_back({end, unit_.elements});
    return unit_.elements;
  }

  bool is_quantized(const ParameterTensor& tensor) const {
    return storage_.form && !tensor.trainable &&
           (is_layer_weight(tensor.kind) || is_of_expert(tensor.kind));
  }

  void add_quantized() {
    unit_.quantized.begin = unit_.elements;
    for (const ParameterTensor& tensor : whole_.tensors) {
      if (is_quantized(tensor) && !is_of_expert(tensor.kind)) add_bytes(tensor);
    }
    unit_.quantized.end = unit_.elements;
  }

  // Adds a matrix that is kept quantised.
  void add_bytes(const ParameterTensor& tensor) {
    ParameterTensor part = part_of(tensor, split_);
    quantize(part, storage_);
    part.offset = unit_.elements;
    unit_.elements += part.place_elements();
    unit_.tensors.push_back(std::move(part));
  }

  // Returns whether a rank has only a share of the gradient of a tensor that all ranks have.
  bool has_share(const ParameterTensor& tensor) const {
    return tensor.gradient == GradientShare::kHeads || tensor.gradient == GradientShare::kPart ||
           (tensor.gradient == GradientShare::kRows && split_.shares_rows);
  }

  void add(const ParameterTensor& tensor) {
    ParameterTensor part = part_of(tensor, split_);
    part.offset = unit_.elements;
    unit_.elements += part.elements();
    const std::int64_t here = part.offset + part.slice.elements_of(split_.rank);
    if (here < unit_.elements) unit_.padding.push_back({here, unit_.elements});
    if (has_share(part) && part.trainable && split_.ranks > 1) {
      if (unit_.summed.empty()) unit_.summed.begin = part.offset;
      unit_.summed.end = unit_.elements;
    }
    unit_.tensors.push_back(std::move(part));
  }

  // Pads what follows `begin` to whole blocks, and returns where it then ends.
  std::int64_t pad(std::int64_t begin) {
    const std::int64_t length = unit_.elements - begin;
    const std::int64_t end = begin + (length + grain_ - 1) / grain_ * grain_;
    if (unit_.elements < end) unit_.padding.push_back({unit_.elements, end});
    return end;
  }

  const UnitLayout& whole_;
  const TensorSplit& split_;
  const BaseStorage& storage_;
  const std::int64_t grain_;
  UnitLayout unit_;
};

}  // namespace

UnitLayout arranged(const UnitLayout& whole, const TensorSplit& split, std::int32_t ranks,
                    const BaseStorage& storage) {
  return UnitArrangement(whole, split, ranks, storage).run();
}

}  // namespace terrace
