#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/unit_state.h"
#include "runtime/model/state_source.h"

// The training state of a model, by the tensors of its units.
namespace terrace {

// Freshly initialised parameters. The update rule's slots are zero.
class RandomState final : public StateSource {
 public:
  explicit RandomState(std::uint64_t seed) : seed_(seed) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  bool has_slots() const override { return false; }

 private:
  std::uint64_t seed_;
};

// The state in its homes. Used between runs only, by one thread.
class TrainingState {
 public:
  // Borrows both. `layout` has all units of the state, in order.
  TrainingState(UnitState& units, const std::vector<UnitLayout>& layout)
      : units_(units), layout_(layout) {}

  // Returns the layout of the units' sequences that are at home here: the whole model's, or a
  // tensor-parallel rank's part.
  const std::vector<UnitLayout>& layout() const { return layout_; }
  // Fills all state that is at home here. After each part `progress` is told how many of all parts
  // are done.
  void fill_from(
      const StateSource& source, WorkerArena& workers,
      FillProgress progress = [](std::int64_t, std::int64_t) {});
  // See UnitState.
  std::uint64_t parameters_hash() const { return units_.parameters_hash(); }
  // Reads elements [begin, begin + out.size()) of a unit's sequence, in whatever groups they are.
  void read(StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out);
  // See UnitState, for these three.
  std::size_t errors_bytes() const { return units_.errors_bytes(); }
  void read_errors(std::size_t first, std::span<std::byte> out) { units_.read_errors(first, out); }
  void write_errors(FunctionRef<void(std::size_t first, std::span<std::byte> part)> source) {
    units_.write_errors(source);
  }

 private:
  UnitState& units_;
  const std::vector<UnitLayout>& layout_;
};

}  // namespace terrace
