#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "optim/moment_code.h"
#include "optim/rule_number.h"
#include "optim/update_state.h"

// The definition of an update by a rule of optim/rules/rules.h, element by element. Vectors give
// the same bits, and so does a GPU, which compiles the same text without contraction.
namespace terrace {

template <typename Rule>
inline constexpr std::size_t kSlotCount = Rule::kSlots.size();

template <typename Rule>
using ElementOf = rules::Element<kSlotCount<Rule>>;

// Updates element i, whose slots are given as numbers. Sets its parameter, and gives the new slots.
template <typename Rule>
void update_element(const ParameterUpdate& update, std::int64_t i, ElementOf<Rule>& element) {
  const StepScalars& scalars = *update.scalars;
  const float weight_decay =
      i < update.decayed_elements ? static_cast<float>(update.options.weight_decay) : 0.0F;
  element.p = exact_parameter(update, i);
  Rule::update(Rule::factors(Rule::constants(update.options), scalars),
               Rule::decay(scalars, weight_decay), gradient_of(update, i) * scalars.gradient_scale,
               element);
  set_exact_parameter(update, i, element.p);
}

inline std::uint32_t random_for(const ParameterUpdate& update, std::int64_t i) {
  return rounding_bits(update.rounding, update.scalars->step, i);
}

// Updates an element with slots in fp32 or bf16.
template <typename Rule>
void reference_of_element(const ParameterUpdate& update, std::int64_t i) {
  const bool rounds = slot_type(update, kSlotCount<Rule>) == DType::kBF16;
  ElementOf<Rule> element;
  for (std::size_t s = 0; s < kSlotCount<Rule>; ++s) {
    const TensorView& slot = update.slots.at(s);
    element.slots[s] = rounds ? to_float(slot.as<Bf16>()[i]) : slot.as<float>()[i];
  }
  update_element<Rule>(update, i, element);
  const std::uint32_t random = rounds ? random_for(update, i) : 0;
  for (std::size_t s = 0; s < kSlotCount<Rule>; ++s) {
    const TensorView& slot = update.slots.at(s);
    if (rounds) {
      slot.as<Bf16>()[i] = to_bf16_stochastic(element.slots[s], half_bits_of_slot(s, random));
    } else {
      slot.as<float>()[i] = element.slots[s];
    }
  }
}

// Updates a block of elements whose slots are codes.
template <typename Rule>
void reference_of_block(const ParameterUpdate& update, std::int64_t first) {
  std::array<ElementOf<Rule>, kMomentBlock> next;
  for (std::size_t i = 0; i < next.size(); ++i) {
    for (std::size_t s = 0; s < kSlotCount<Rule>; ++s) {
      const std::uint8_t exponent = codes_of(update.exponents.at(s))[first / kMomentBlock];
      const std::uint8_t* const codes = codes_of(update.slots.at(s)) + first;
      next[i].slots[s] = decode_slot(Rule::kSlots.at(s).has_sign, codes[i], exponent);
    }
    update_element<Rule>(update, first + static_cast<std::int64_t>(i), next[i]);
  }
  for (std::size_t s = 0; s < kSlotCount<Rule>; ++s) {
    std::uint32_t largest = 0;
    for (const ElementOf<Rule>& element : next) {
      largest = std::max(largest, std::bit_cast<std::uint32_t>(element.slots[s]) & 0x7fffffffU);
    }
    const std::uint8_t exponent = block_exponent(largest);
    codes_of(update.exponents.at(s))[first / kMomentBlock] = exponent;
    std::uint8_t* const codes = codes_of(update.slots.at(s)) + first;
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::uint32_t random = random_for(update, first + static_cast<std::int64_t>(i));
      codes[i] = encode_slot(Rule::kSlots.at(s).has_sign, next[i].slots[s], exponent,
                             dropped_bits_of_slot(s, random));
    }
  }
}

// Updates the elements [begin, end), which are whole blocks if the slots are codes.
template <typename Rule>
void reference_of_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) {
  if (slot_type(update, kSlotCount<Rule>) == DType::kU8) {
    for (std::int64_t i = begin; i < end; i += kMomentBlock) reference_of_block<Rule>(update, i);
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) reference_of_element<Rule>(update, i);
}

// The function UpdateRule::reference.
template <typename Rule>
void reference_update(const ParameterUpdate& update) {
  check_update(update, kSlotCount<Rule>);
  const std::int64_t elements = update.gradient.elements();
  if (update.scalars->skips != 0) return keep_state(update, 0, elements);
  reference_of_range<Rule>(update, 0, elements);
}

}  // namespace terrace
