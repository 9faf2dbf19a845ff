#pragma once

#include <cstdint>
#include <span>

#include "runtime/checkpoint/hf_directory.h"
#include "runtime/model/state_source.h"

namespace terrace {

// Loaded parameters. The update rule's slots are zero. Throws CorruptData for parameters that are
// not finite.
class WeightState final : public StateSource {
 public:
  explicit WeightState(const HfDirectory& directory) : directory_(directory) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  bool has_slots() const override { return false; }

 private:
  const HfDirectory& directory_;
};

}  // namespace terrace
