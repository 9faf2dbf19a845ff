#pragma once

#include <vector>

#include "base/dtype.h"
#include "memory/host/host_memory.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/train/unit_parameters.h"

namespace terrace {

// Returns the layout of a model in which nothing trains: its forward pass saves nothing for a
// backward pass.
std::vector<UnitLayout> frozen_layout(const ModelConfig& config);

// The parameters of a whole model, held in memory.
class HeldParameters final : public UnitParameters {
 public:
  // Fetches every parameter, and rounds it to `type` as parameters are rounded. Throws OutOfMemory
  // and what `fetch` throws.
  HeldParameters(const ModelConfig& config, DType type, FetchParameter fetch);

  void for_each_unit(FunctionRef<void(const Turn&)> use) override;
  static std::size_t memory_bytes(const std::vector<UnitLayout>& layout, DType type);

 private:
  void load_unit(const UnitLayout& unit, FetchParameter fetch);
  std::byte* of_unit(std::size_t unit) { return memory_.bytes().data() + offsets_.at(unit); }

  const std::vector<UnitLayout> layout_;
  const DType type_;
  const std::vector<std::size_t> offsets_;  // by unit
  HostMemory memory_;
};

}  // namespace terrace
