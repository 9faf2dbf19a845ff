#pragma once

#include <cstdint>
#include <optional>

#include "runtime/step/program.h"

// Which training step a value belongs to. A body holds ops of two steps: its deferred ops finish
// step s - 1 while the others are of step s. An op that finds its buffer written, but by the other
// step, computes with another step's learning rate, gradient or parameters.
namespace terrace {

// The step whose value an op must find in what it reads, counted from the op's own step.
enum class ValueAge : std::uint8_t {
  kOwnStep,     // tokens, activations, gradients, losses, norm partials, scalars
  kStepBefore,  // what a step is given and changes: parameters, optimizer state, loss scale
  kAny,         // constants, and what is only passed on
};

// Returns what `op` demands of what it reads in this role.
ValueAge demanded_age(const Op& op, Role role);

// Returns whether the op writes what it reads, of whatever step that is: copies between tiers and
// collectives that pass on or add what several ranks have. Every other op writes a value of its own
// step.
bool passes_values_on(const Op& op);

// Returns the step of an op of the body's given iteration: that iteration, or the one before for a
// deferred op.
inline std::int64_t step_of(const Op& op, std::int64_t iteration) {
  return iteration - (op.deferred ? 1 : 0);
}

}  // namespace terrace
