#include "runtime/train/held_parameters.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/half.h"

namespace terrace {
namespace {

// The number of elements of a parameter that are fetched at once; a tensor stored transposed is
// read whole anyway.
constexpr std::int64_t kFetchElements = 16 * 1024 * 1024;

std::size_t bytes_of_unit(const UnitLayout& unit, DType type) {
  return round_up(static_cast<std::size_t>(unit.padded_elements) * size_of(type), 64);
}

std::vector<std::size_t> offsets_of(const std::vector<UnitLayout>& layout, DType type) {
  std::vector<std::size_t> offsets;
  std::size_t offset = 0;
  for (const UnitLayout& unit : layout) {
    offsets.push_back(offset);
    offset += bytes_of_unit(unit, type);
  }
  return offsets;
}

}  // namespace

// Makes it of a model whose own tensors are all alike: tensors that train and tensors that do not
// would lie apart, and layers expect that tensors lie side by side if none of them trains.
std::vector<UnitLayout> frozen_layout(const ModelConfig& config) {
  ModelConfig plain = config;
  plain.trainable.clear();
  plain.adapter.whole_modules.clear();
  std::vector<UnitLayout> layout = parameter_layout(plain);
  for (UnitLayout& unit : layout) {
    unit.frozen_elements = unit.shared_elements();
    unit.experts.train = false;
    for (ParameterTensor& tensor : unit.tensors) tensor.trainable = false;
  }
  return layout;
}

std::size_t HeldParameters::memory_bytes(const std::vector<UnitLayout>& layout, DType type) {
  std::size_t bytes = 0;
  for (const UnitLayout& unit : layout) bytes += bytes_of_unit(unit, type);
  return bytes;
}

HeldParameters::HeldParameters(const ModelConfig& config, DType type, FetchParameter fetch)
    : layout_(frozen_layout(config)),
      type_(type),
      offsets_(offsets_of(layout_, type)),
      memory_(memory_bytes(layout_, type), {}) {
  for (const UnitLayout& unit : layout_) load_unit(unit, fetch);
}

void HeldParameters::load_unit(const UnitLayout& unit, FetchParameter fetch) {
  std::byte* const base = of_unit(static_cast<std::size_t>(unit.index));
  std::vector<float> values;
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t grain = tensor.stored_transposed ? tensor.elements() : kFetchElements;
    for (std::int64_t begin = 0; begin < tensor.elements(); begin += grain) {
      values.resize(static_cast<std::size_t>(std::min(grain, tensor.elements() - begin)));
      fetch(unit, tensor, begin, values);
      std::byte* target = base + static_cast<std::size_t>(tensor.offset + begin) * size_of(type_);
      if (type_ == DType::kF32) {
        std::memcpy(target, values.data(), values.size() * sizeof(float));
      } else {
        std::transform(values.begin(), values.end(), reinterpret_cast<Bf16*>(target),
                       to_bf16_ties_away);
      }
    }
  }
}

void HeldParameters::for_each_unit(FunctionRef<void(const Turn&)> use) {
  for (const UnitLayout& unit : layout_) {
    use({static_cast<std::int32_t>(unit.index), of_unit(static_cast<std::size_t>(unit.index)),
         of_unit(0)});
  }
}

}  // namespace terrace
