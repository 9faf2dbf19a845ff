#include "optim/loss_scale.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

LossScaleState initial_loss_scale(const LossScaleOptions& options) {
  return {.scale = options.initial, .overflows_left = options.hysteresis};
}

LossScaleState after_good_step(const LossScaleOptions& options, const LossScaleState& state) {
  LossScaleState next = state;
  ++next.good_steps;
  if (next.good_steps < options.window) return next;
  next.good_steps = 0;
  next.scale = std::min(2 * state.scale, options.maximum);
  next.overflows_left = options.hysteresis;
  return next;
}

bool can_skip(const LossScaleOptions& options, const LossScaleState& state) {
  return state.overflows_left > 1 || state.scale > options.minimum;
}

LossScaleState after_overflow(const LossScaleOptions& options, const LossScaleState& state) {
  TERRACE_CHECK(can_skip(options, state));
  LossScaleState next = state;
  next.good_steps = 0;
  ++next.skipped_steps;
  if (state.overflows_left > 1) {
    --next.overflows_left;
  } else {
    next.scale = std::max(state.scale / 2, options.minimum);
  }
  return next;
}

}  // namespace terrace
