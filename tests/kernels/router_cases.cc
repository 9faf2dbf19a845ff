#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/op_case.h"

// The ops of a router's losses. Logits are at most 8 in size.
namespace terrace::test {
namespace {

using HostTensors = std::vector<HostTensor>;

constexpr double kLargestLogit = 8;

struct RouterShape {
  std::int64_t R, E, k;
};

constexpr RouterShape kRouterShapes[] = {{1, 4, 2}, {37, 5, 3}, {300, 9, 1}, {150, 3, 3}};

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// The errors of the softmax over all logits of a row.
struct SoftmaxErrors {
  explicit SoftmaxErrors(std::int64_t E)
      : probability(units(E + 4) + 2 * kExpUnits * kUnitF32 + 4 * kLargestLogit * kUnitF32),
        largest_log_sum(kLargestLogit + std::log(static_cast<double>(E))),
        log_sum(probability + (kExpUnits + 1) * kUnitF32 * (largest_log_sum + kLargestLogit)) {}

  // Relative: of an exponential, whose argument is a rounded difference of logits, and of a sum of
  // E exponentials.
  double probability;
  double largest_log_sum;
  // Absolute: the relative error of the sum, the logarithm's own, and the rounding of the addition
  // of the largest logit.
  double log_sum;
};

// Returns the experts of each row: k neighbours, counted around, in ascending order.
HostTensor choices(const RouterShape& s, Random& random) {
  HostTensor index(DType::kI32, shape(s.R, s.k));
  for (std::int64_t r = 0; r < s.R; ++r) {
    const std::int64_t first = random.below(static_cast<std::int32_t>(s.E));
    std::vector<std::int64_t> experts;
    for (std::int64_t j = 0; j < s.k; ++j) experts.push_back((first + j) % s.E);
    std::ranges::sort(experts);
    for (std::int64_t j = 0; j < s.k; ++j) {
      index.set(r * s.k + j, static_cast<double>(experts[at(j)]));
    }
  }
  return index;
}

// Returns targets of which a third is padding, and a third is of tokens that are not trained on.
HostTensor targets_of(std::int64_t rows) {
  HostTensor targets(DType::kI32, shape(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    targets.set(r, r % 3 == 0 ? 7.0 : r % 3 == 1 ? kPaddingTarget : -1.0);
  }
  return targets;
}

OpCase sums_case(DType compute, const RouterShape& s, bool has_targets, Random& random) {
  OpCase c;
  c.name = fmt::format("router_sums R={} E={} k={} targets={}", s.R, s.E, s.k, has_targets);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.R, s.E), random, kLargestLogit),
                         choices(s, random), targets_of(s.R)};
  c.outputs = {{.dtype = DType::kF64, .shape = shape(router_sums_of(s.E))}};
  set_op(c, &KernelTable::router_sums, &KernelTable::router_sums_workspace,
         [has_targets](const Views& in, const Views& out, GradientMode) {
           return RouterSums{in[0], in[1], out[0], has_targets ? in[2] : TensorView{}};
         });
  // Counts are exact, and additions in fp64 nearly so. The sizes of the L are at most the root of
  // rows times the sum of their squares, all together.
  c.bounds = [s](const Values&, const Values& want) {
    const SoftmaxErrors errors(s.E);
    Values bounds(1, std::vector<double>(want[0].size(), 0.0));
    for (std::int64_t e = 0; e < s.E; ++e) {
      bounds[0][at(s.E + e)] = (errors.probability + kUnitF32) * want[0][at(s.E + e)];
    }
    const double squares = want[0][at(2 * s.E)];
    const double rows = want[0][at(2 * s.E + 1)];
    bounds[0][at(2 * s.E)] = 2 * errors.log_sum * std::sqrt(rows * squares) +
                             rows * errors.log_sum * errors.log_sum + kUnitF32 * squares;
    return bounds;
  };
  return c;
}

OpCase slopes_case(std::int64_t E, std::int64_t layers, std::int32_t rows, Random& random) {
  OpCase c;
  c.name = fmt::format("router_slopes E={} layers={} rows={}", E, layers, rows);
  const std::int64_t stride = router_sums_of(E);
  HostTensor sums = HostTensor::random(DType::kF64, shape(layers, stride), random, 100.0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t e = 0; e < E; ++e) {
      sums.set(layer * stride + e, rows == 0 ? 0 : static_cast<double>(random.below(rows)));
    }
    sums.set(layer * stride + 2 * E + 1, rows);
  }
  c.inputs = HostTensors{sums};
  c.outputs = {{.dtype = DType::kF32, .shape = shape(E + 1)}};
  set_op(c, &KernelTable::router_slopes, [](const Views& in, const Views& out, GradientMode) {
    return RouterSlopes{.sums = in[0], .slopes = out[0], .layers = 7, .balance = 0.3, .z = 0.02};
  });
  return c;  // the bits of the reference
}

OpCase gradient_case(DType compute, const RouterShape& s, const ExpertRule& rule, Random& random) {
  OpCase c;
  c.name = fmt::format("choose_experts_backward losses R={} E={} k={} normalizes={}", s.R, s.E, s.k,
                       rule.normalizes);
  c.inputs =
      HostTensors{HostTensor::random(compute, shape(s.R, s.E), random, kLargestLogit),
                  choices(s, random), HostTensor::random(DType::kF32, shape(s.R, s.k), random),
                  HostTensor::random(DType::kF32, shape(s.E + 1), random), targets_of(s.R)};
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.E)}};
  set_op(c, &KernelTable::choose_experts_backward,
         [rule](const Views& in, const Views& out, GradientMode) {
           return ChooseExpertsBackward{in[0], in[1], in[2], out[0], rule, in[3], in[4]};
         });
  // The gradient without the losses is within the bound of expert_cases.cc. The losses add
  // p (slope - mean + z L): p, |slope|, |mean| and |z| are at most 1.
  c.bounds = [=, rounding = rounding_to(compute)](const Values&, const Values& want) {
    const SoftmaxErrors errors(s.E);
    const double size = 2 + errors.largest_log_sum;
    const double of_weights = 4 * errors.probability + 2 * units(s.k + 4);
    const double of_losses =
        errors.probability * (size + 1) + units(s.E + 2) + errors.log_sum + 6 * kUnitF32 * size;
    Values bounds(1);
    for (const double value : want[0]) {
      const double error = of_weights + of_losses + kUnitF32 * std::abs(value);
      bounds[0].push_back(error + rounding.of(std::abs(value) + error));
    }
    return bounds;
  };
  return c;
}

}  // namespace

std::vector<OpCase> router_cases(DType compute) {
  Random random(32);
  std::vector<OpCase> cases;
  for (const RouterShape& s : kRouterShapes) {
    for (const bool flag : {false, true}) {
      cases.push_back(sums_case(compute, s, flag, random));
      cases.push_back(gradient_case(compute, s, {.normalizes = flag}, random));
    }
  }
  cases.push_back(slopes_case(1, 1, 5, random));
  cases.push_back(slopes_case(9, 4, 300, random));
  cases.push_back(slopes_case(3, 2, 0, random));
  return cases;
}

}  // namespace terrace::test
