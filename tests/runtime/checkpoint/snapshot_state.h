#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/engine/model_runtime.h"

namespace terrace {

// The whole state of an engine, read out of its homes so that it can be put into another engine or
// compared. From units that have quantised matrices, only the part that trains is read.
class SnapshotState final : public StateSource {
 public:
  explicit SnapshotState(ModelRuntime& engine) {
    for (const UnitLayout& unit : engine.compute().layout()) {
      for (const StateField field : kStateFields) {
        auto& values = values_[{unit.index, field}];
        values.resize(static_cast<std::size_t>(unit.padded_elements));
        // Quantised matrices have no numbers to read.
        const std::int64_t read =
            unit.quantized.empty() ? unit.padded_elements : unit.trained_elements();
        engine.state().read(field, static_cast<std::int32_t>(unit.index), 0,
                            std::span(values).first(static_cast<std::size_t>(read)));
      }
    }
  }
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    const auto& values = values_.at({unit.index, field});
    std::copy_n(values.begin() + begin, out.size(), out.begin());
  }

  friend bool operator==(const SnapshotState& a, const SnapshotState& b) {
    return a.values_ == b.values_;
  }

 private:
  std::map<std::pair<std::int64_t, StateField>, std::vector<float>> values_;
};

}  // namespace terrace
