#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/state_field.h"

namespace terrace {

// The source of a state: random numbers, weights, a checkpoint. Thread-safe.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Fills `out` with elements [begin, begin + out.size()) of the unit's flat sequence. Its padding
  // is zero.
  virtual void read(StateField field, const UnitLayout& unit, std::int64_t begin,
                    std::span<float> out) const = 0;
  // Returns false if all that the update rule keeps is zero, as before the first step.
  virtual bool has_slots() const { return true; }
};

// A tensor-parallel rank's part of a state of the whole model. It answers for the rank's units by
// reading the model's state.
class TensorPartState final : public StateSource {
 public:
  // Borrows both; `layout` is the whole model's.
  TensorPartState(const StateSource& source, const std::vector<UnitLayout>& layout)
      : source_(source), layout_(layout) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  bool has_slots() const override { return source_.has_slots(); }

 private:
  void read_part(StateField field, const UnitLayout& whole, const TensorSlice& slice,
                 std::int64_t first, std::span<float> out) const;

  const StateSource& source_;
  const std::vector<UnitLayout>& layout_;
};

// Calls visit(tensor, first element within it, part of `out`) for the tensors that the range
// touches, and zeroes the parts that are padding. The range must not touch a quantised matrix,
// because none of its elements is there.
void for_each_tensor_part(
    const UnitLayout& unit, std::int64_t begin, std::span<float> out,
    FunctionRef<void(const ParameterTensor&, std::int64_t, std::span<float>)> visit);

}  // namespace terrace
