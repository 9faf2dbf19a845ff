#pragma once

#include <cstdint>
#include <span>

#include "base/half.h"

// Conversions of whole arrays, number by number as base/half.h says. Both spans of a call have the
// same size.
namespace terrace {

void to_floats(std::span<const Bf16> values, std::span<float> out);
void to_floats(std::span<const Fp16> values, std::span<float> out);
// Convert as to_parameter() does.
void to_parameters(std::span<const float> exact, std::span<Bf16> out);
void to_parameters(std::span<const float> exact, std::span<Fp16> out);
// Writes the remainders of split(); to_parameters() writes its upper halves.
void to_remainders(std::span<const float> exact, std::span<std::int16_t> out);
void join(std::span<const Bf16> high, std::span<const std::int16_t> remainders,
          std::span<float> out);

// Returns whether no value is infinite or NaN.
bool all_finite(std::span<const float> values);
bool all_finite(std::span<const Bf16> values);
bool all_finite(std::span<const Fp16> values);

}  // namespace terrace
