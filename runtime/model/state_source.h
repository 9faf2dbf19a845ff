#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "optim/state_format.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// What there is of each parameter: its exact value, and what the update rule keeps of it.
enum class StateField : std::uint8_t { kMaster, kSlot0, kSlot1 };
inline constexpr std::array<StateField, 1 + kMostSlots> kStateFields = {
    StateField::kMaster, StateField::kSlot0, StateField::kSlot1};

inline constexpr StateField field_of_slot(std::size_t slot) { return kStateFields.at(1 + slot); }
// The slot that a field is; none where it is no slot of an update rule.
inline constexpr std::optional<std::size_t> slot_of(StateField field) {
  const bool is_slot = field == StateField::kSlot0 || field == StateField::kSlot1;
  return is_slot ? std::optional(static_cast<std::size_t>(field) - 1) : std::nullopt;
}
// Those there are with a rule of so many slots.
inline std::vector<StateField> state_fields(std::size_t slots) {
  std::vector<StateField> fields;
  for (const StateField field : kStateFields) {
    const std::optional<std::size_t> slot = slot_of(field);
    if (!slot || *slot < slots) fields.push_back(field);
  }
  return fields;
}

// Where a state comes from: random numbers, weights, a checkpoint. Thread-safe.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Elements [begin, begin + out.size()) of the unit's flat sequence; its padding is zero.
  virtual void read(StateField field, const UnitLayout& unit, std::int64_t begin,
                    std::span<float> out) const = 0;
};

// A tensor-parallel rank's part of a state of the whole model: what is asked for of its units comes
// from the model's.
class TensorPartState final : public StateSource {
 public:
  // Borrows both; `layout` is the whole model's.
  TensorPartState(const StateSource& source, const std::vector<UnitLayout>& layout)
      : source_(source), layout_(layout) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;

 private:
  void read_part(StateField field, const UnitLayout& whole, const TensorSlice& slice,
                 std::int64_t first, std::span<float> out) const;

  const StateSource& source_;
  const std::vector<UnitLayout>& layout_;
};

// Calls visit(tensor, first element within it, part of `out`) for the tensors that the range
// touches, and zeroes the parts that are padding.
void for_each_tensor_part(
    const UnitLayout& unit, std::int64_t begin, std::span<float> out,
    FunctionRef<void(const ParameterTensor&, std::int64_t, std::span<float>)> visit);

}  // namespace terrace
