#pragma once

#include <math.h>

#include <array>
#include <cstddef>

#include "base/half.h"
#include "optim/update_rule.h"

// The names that the texts in optim/rules are written in, for a rule that updates one element: for
// the reference, and for a thread of a GPU. optim/cpu/rule_number.inl has the same names for
// vectors of elements.

// Begins each function of a rule's text that an update calls.
#define TERRACE_RULE_FUNCTION TERRACE_HOST_DEVICE inline __attribute__((always_inline))

namespace terrace {

// The constants that a rule makes of its hyperparameters once, on the host.
using RuleConstants = std::array<float, kMostHyperparameters>;

namespace rules {

using Number = float;

TERRACE_HOST_DEVICE inline Number number(float value) { return value; }
// Returns a * b + c, rounded once.
TERRACE_HOST_DEVICE inline Number fused(Number a, Number b, Number c) { return ::fmaf(a, b, c); }
TERRACE_HOST_DEVICE inline Number square_root(Number x) { return ::sqrtf(x); }
// Returns 1 or -1; a zero or NaN is returned as it is.
TERRACE_HOST_DEVICE inline Number sign(Number x) {
  return ::fabsf(x) > 0.0F ? ::copysignf(1.0F, x) : x;
}

// The exact parameter of an element, and its slots as numbers.
template <std::size_t Slots>
struct Element {
  Number p;
  Number slots[Slots == 0 ? 1 : Slots];
};

}  // namespace rules
}  // namespace terrace
