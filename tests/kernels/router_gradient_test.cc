#include <gtest/gtest.h>

#include <array>

#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/host_tensor.h"

// The gradient of the losses of routers, compared with differences of the losses in fp64.
namespace terrace::test {
namespace {

const KernelTable& kernels() { return reference_kernels(); }

// The losses of two routers that see different logits: the balance loss of both together, and the
// mean of the squared logarithms of sums. The middle row does not count.
struct RouterCheck {
  static constexpr std::int64_t kRows = 5, kExperts = 4, kChosen = 2, kLayers = 2;
  static constexpr double kBalance = 0.7, kZ = 0.3;

  explicit RouterCheck(Random& random) {
    for (HostTensor& of_layer : logits) {
      of_layer = HostTensor::random(DType::kF64, shape(kRows, kExperts), random, 2.0);
    }
    for (std::int64_t r = 0; r < kRows; ++r) targets.set(r, r == kRows / 2 ? kPaddingTarget : -1.0);
  }

  TensorView sums_of(std::size_t layer) const {
    TensorView view = sums.view();
    view.data += layer * router_sums_of(kExperts) * sizeof(double);
    view.shape = {router_sums_of(kExperts), 1, 1, 1};
    return view;
  }
  double loss() const {
    for (std::size_t layer = 0; layer < logits.size(); ++layer) {
      kernels().choose_experts({}, {logits[layer].view(), index.view(), weight.view(), {}});
      kernels().router_sums({},
                            {logits[layer].view(), index.view(), sums_of(layer), targets.view()});
    }
    const auto total = [&](std::int64_t number) {
      return sums.at(number) + sums.at(router_sums_of(kExperts) + number);
    };
    const double rows = total(2 * kExperts + 1);
    double balance = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      balance += kExperts * (total(e) / rows) * (total(kExperts + e) / rows);
    }
    return kBalance * balance + kZ * total(2 * kExperts) / rows;
  }

  std::array<HostTensor, kLayers> logits = {HostTensor(DType::kF64, shape(kRows, kExperts)),
                                            HostTensor(DType::kF64, shape(kRows, kExperts))};
  HostTensor targets{DType::kI32, shape(kRows)};
  HostTensor index{DType::kI32, shape(kRows, kChosen)};
  HostTensor weight{DType::kF64, shape(kRows, kChosen)};
  HostTensor sums{DType::kF64, shape(kLayers, router_sums_of(kExperts))};
};

TEST(RouterGradientCheck, LossesOfTwoLayers) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-8;
  Random random(29);
  RouterCheck check(random);
  check.loss();
  const HostTensor slopes(DType::kF64, shape(RouterCheck::kExperts + 1));
  kernels().router_slopes({}, {check.sums.view(), slopes.view(), RouterCheck::kLayers,
                               RouterCheck::kBalance, RouterCheck::kZ});
  HostTensor no_weights(check.weight);
  for (std::int64_t i = 0; i < no_weights.elements(); ++i) no_weights.set(i, 0);
  for (HostTensor& logits : check.logits) {
    const HostTensor gradient(DType::kF64, logits.view().shape);
    kernels().choose_experts({}, {logits.view(), check.index.view(), check.weight.view(), {}});
    kernels().choose_experts_backward({}, {.logits = logits.view(),
                                           .index = check.index.view(),
                                           .dweight = no_weights.view(),
                                           .dlogits = gradient.view(),
                                           .rule = {},
                                           .slopes = slopes.view(),
                                           .targets = check.targets.view()});
    for (std::int64_t i = 0; i < logits.elements(); ++i) {
      const double value = logits.at(i);
      logits.set(i, value + kStep);
      const double above = check.loss();
      logits.set(i, value - kStep);
      const double below = check.loss();
      logits.set(i, value);
      EXPECT_NEAR(gradient.at(i), (above - below) / (2 * kStep), kTolerance) << i;
    }
  }
}

}  // namespace
}  // namespace terrace::test
