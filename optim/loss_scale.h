#pragma once

#include <cstdint>

// Dynamic loss scaling for fp16: the gradient of the loss is multiplied by a power of two, so that
// small gradients are not lost, and gradients are divided by it where they are used. The rules and
// their names come from Apex and DeepSpeed.
namespace terrace {

struct LossScaleOptions {
  float initial = 65536.0F;     // a power of two, as every scale
  float minimum = 1.0F;         // an overflow there ends the run
  float maximum = 0x1p32F;      // not reached by gradients that are not all zero
  std::int32_t window = 1000;   // this many good steps, one after the other, double the scale
  std::int32_t hysteresis = 2;  // the overflow of this number, and each one after it, halves it
};

// Everything that one step leaves to the next, and that a checkpoint has to keep.
struct LossScaleState {
  float scale = 65536.0F;
  std::int32_t good_steps = 0;      // since the scale grew or a step overflowed
  std::int32_t overflows_left = 2;  // 1: the next one halves the scale
  std::int64_t skipped_steps = 0;   // of the whole run

  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

LossScaleState initial_loss_scale(const LossScaleOptions& options);

// Returns the state after a step whose gradients were finite, and which was done.
LossScaleState after_good_step(const LossScaleOptions& options, const LossScaleState& state);

// Returns whether a step that overflows may be skipped: the scale can still be lowered, or need not
// be.
bool can_skip(const LossScaleOptions& options, const LossScaleState& state);

// Returns the state after a step whose gradients were not finite, and which was skipped.
LossScaleState after_overflow(const LossScaleOptions& options, const LossScaleState& state);

}  // namespace terrace
