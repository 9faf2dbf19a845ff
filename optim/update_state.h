#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "optim/update_rule.h"

// The work that updates of every rule do beside the rule's arithmetic, element by element.
namespace terrace {

// Returns the exact parameter of an element, whatever form its master has.
inline float exact_parameter(const ParameterUpdate& update, std::int64_t i) {
  if (update.master.dtype == DType::kF32) return update.master.as<float>()[i];
  return join({update.parameter.as<Bf16>()[i], update.master.as<std::int16_t>()[i]});
}

inline void set_exact_parameter(const ParameterUpdate& update, std::int64_t i, float value) {
  if (update.master.dtype == DType::kF32) {
    update.master.as<float>()[i] = value;
  } else {
    update.master.as<std::int16_t>()[i] = split(value).remainder;
  }
  if (update.parameter.dtype == DType::kF32) {
    update.parameter.as<float>()[i] = value;
  } else if (update.parameter.dtype == DType::kF16) {
    update.parameter.as<Fp16>()[i] = to_parameter<Fp16>(value);
  } else {
    update.parameter.as<Bf16>()[i] = to_parameter<Bf16>(value);
  }
}

inline float gradient_of(const ParameterUpdate& update, std::int64_t i) {
  return update.gradient.dtype == DType::kF32 ? update.gradient.as<const float>()[i]
                                              : to_float(update.gradient.as<const Bf16>()[i]);
}

inline std::uint8_t* codes_of(const TensorView& view) {
  return reinterpret_cast<std::uint8_t*>(view.as<std::byte>());
}

// Returns the type in which the slots of a rule that has `slot_count` of them are stored: fp32 if
// it has none.
inline DType slot_type(const ParameterUpdate& update, std::size_t slot_count) {
  return slot_count == 0 ? DType::kF32 : update.slots[0].dtype;
}

// Does a skipped update of the elements [begin, end).
void keep_state(const ParameterUpdate& update, std::int64_t begin, std::int64_t end);

// Calls body(begin, end) for the part of [begin, end) that decays and the part that does not.
template <typename Body>
void for_each_decay_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end,
                          const Body& body) {
  const std::int64_t middle = std::clamp(update.decayed_elements, begin, end);
  if (begin < middle) body(begin, middle);
  if (middle < end) body(middle, end);
}

// Aborts if the views of an update by a rule with `slot_count` slots are not n elements of the
// dtypes that ParameterUpdate names.
void check_update(const ParameterUpdate& update, std::size_t slot_count);

}  // namespace terrace
