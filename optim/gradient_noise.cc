#include "optim/gradient_noise.h"

namespace terrace {

// |gradient of a batch|^2 has the mean |G|^2 + tr(S) / samples. Two batches give two equations.
GradientNoise estimate_gradient_noise(const BatchGradient& small, const BatchGradient& big) {
  return {
      .squared_norm = (big.samples * big.squared_norm - small.samples * small.squared_norm) /
                      (big.samples - small.samples),
      .variance = (small.squared_norm - big.squared_norm) / (1 / small.samples - 1 / big.samples)};
}

GradientNoiseState after_step(const GradientNoiseState& state, const GradientNoise& noise) {
  const auto average = [](double before, double now) {
    return kNoiseDecay * before + (1 - kNoiseDecay) * now;
  };
  return {.sums = {.squared_norm = average(state.sums.squared_norm, noise.squared_norm),
                   .variance = average(state.sums.variance, noise.variance)},
          .steps = state.steps + 1};
}

std::optional<double> gradient_noise_scale(const GradientNoiseState& state) {
  if (!(state.sums.variance > 0 && state.sums.squared_norm > 0)) return std::nullopt;
  return state.sums.variance / state.sums.squared_norm;
}

bool exceeds_samples(const GradientNoiseState& state, double samples) {
  return state.sums.variance > samples * state.sums.squared_norm;
}

}  // namespace terrace
