#pragma once

#include <cstdint>
#include <optional>

// The gradient noise scale: how many samples a step must have for the noise of its gradient to be
// as large as the gradient itself. It is tr(S) / |G|^2, where G is the gradient over all data and S
// the covariance of the gradient of one sample (McCandlish et al. 2018, "An Empirical Model of
// Large-Batch Training", arXiv:1812.06162, appendix A.1, where it is called B_simple).
namespace terrace {

// The squared norm of the gradient of a batch, which is a mean over its samples.
struct BatchGradient {
  double squared_norm = 0;
  double samples = 0;  // need not be a whole number
};

// Estimates that have the right mean but vary much from step to step. Either may be negative.
struct GradientNoise {
  double squared_norm = 0;  // of G
  double variance = 0;      // the trace of S

  friend bool operator==(const GradientNoise&, const GradientNoise&) = default;
};

// Returns the estimates of a step from the gradients of two batches of different size.
GradientNoise estimate_gradient_noise(const BatchGradient& small, const BatchGradient& big);

// The estimates of the steps so far, as exponential averages. A checkpoint has to keep it.
struct GradientNoiseState {
  GradientNoise sums;      // averages that begin with 0; only their ratio is used
  std::int64_t steps = 0;  // with an estimate

  friend bool operator==(const GradientNoiseState&, const GradientNoiseState&) = default;
};
// The weight that an average keeps from step to step.
inline constexpr double kNoiseDecay = 0.99;

// Returns the state after a step with these estimates.
GradientNoiseState after_step(const GradientNoiseState& state, const GradientNoise& noise);

// Returns the gradient noise scale, in samples: the ratio of the averages. Returns nothing as long
// as one of them is not positive.
std::optional<double> gradient_noise_scale(const GradientNoiseState& state);

// Returns whether the gradient noise scale is above this number of samples. It is also above if the
// averages show noise but no gradient. This is the norm test of adaptive batch sizes with eta = 1
// (Lau et al. 2024, "Adaptive Batch Size Schedules for Distributed Training of Language Models with
// Data and Model Parallelism", arXiv:2412.21124): the batch is too small if tr(S) / samples is more
// than eta^2 |G|^2.
bool exceeds_samples(const GradientNoiseState& state, double samples);

}  // namespace terrace
