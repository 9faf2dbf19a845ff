#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "base/function_ref.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/host_tensor.h"

// Checks of the reference's backwards against central finite differences of its forwards, in fp64.
namespace terrace::test {

// A difference with step h has a truncation error of h^2/6 f''' and a rounding error of 2^-53 |f| /
// h: with f and f''' of at most some hundreds, both are below 1e-7.
inline constexpr double kStep = 1e-5;
inline constexpr double kTolerance = 1e-7;

inline const KernelTable& kernels() { return reference_kernels(); }

inline HostTensor random_f64(Shape shape, Random& random) {
  return HostTensor::random(DType::kF64, shape, random);
}

inline double dot(const HostTensor& a, const HostTensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

// A gradient buffer: NaN before an assignment, random before an accumulation.
struct Gradient {
  Gradient(Shape shape, GradientMode mode, Random& random)
      : before(random_f64(shape, random)), value(before) {
    if (mode == GradientMode::kAccumulate) return;
    for (std::int64_t i = 0; i < before.elements(); ++i) before.set(i, 0.0);
    value.fill_garbage();
  }
  Gradient(Shape shape, Random& random) : Gradient(shape, GradientMode::kAssign, random) {}

  HostTensor before, value;
};

// Checks d loss() / d input[i] for every i against the gradient.
inline void expect_gradient(HostTensor& input, const Gradient& gradient,
                            FunctionRef<double()> loss) {
  ASSERT_EQ(input.elements(), gradient.value.elements());
  for (std::int64_t i = 0; i < input.elements(); ++i) {
    const double value = input.at(i);
    input.set(i, value + kStep);
    const double above = loss();
    input.set(i, value - kStep);
    const double below = loss();
    input.set(i, value);
    const double want = (above - below) / (2 * kStep);
    const double got = gradient.value.at(i) - gradient.before.at(i);
    EXPECT_LE(std::abs(got - want), kTolerance * (1 + std::abs(want)))
        << "element " << i << ": " << got << ", by differences " << want;
  }
}

}  // namespace terrace::test
