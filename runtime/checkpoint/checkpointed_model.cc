#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace terrace {

std::vector<const UnitLayout*> CheckpointedModel::units() const {
  std::vector<const UnitLayout*> order;
  const auto add = [&order](const UnitLayout& unit) {
    if (unit.trains() && std::ranges::find(order, &unit) == order.end()) order.push_back(&unit);
  };
  for (const std::int32_t index : first_changed) add(layout.at(static_cast<std::size_t>(index)));
  for (const UnitLayout& unit : layout) add(unit);
  return order;
}

std::uint64_t checkpoint_bytes(const CheckpointedModel& model) {
  constexpr std::uint64_t kBytesOfTensor = 256;      // in a header: name, shape, offsets
  constexpr std::uint64_t kBytesOfFile = 16 * 1024;  // alignment, its part of the manifest, blocks
  constexpr std::uint64_t kBytesOfChecksum = 16;
  constexpr std::uint64_t kBytesOfRest = 64 * 1024;  // config.json and the manifest's other keys
  std::uint64_t bytes = kBytesOfRest;
  for (const UnitLayout& unit : model.layout) {
    if (!unit.trains()) continue;
    const auto data = static_cast<std::uint64_t>(unit.trained_count()) * sizeof(float);
    const std::uint64_t pieces = data / kHashPieceBytes + 2;
    const std::uint64_t file =
        data + pieces * kBytesOfChecksum + kBytesOfFile + unit.tensors.size() * kBytesOfTensor;
    bytes += file * state_fields(model.rule.slots.size()).size();
  }
  if (model.errors != nullptr) bytes += error_files_bytes(model.errors->of);
  return bytes;
}

}  // namespace terrace
