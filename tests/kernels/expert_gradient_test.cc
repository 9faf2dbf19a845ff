#include "kernels/expert_ops.h"
#include "tests/kernels/gradient_check.h"

// The gradients of a layer of experts.
namespace terrace::test {
namespace {

class ExpertGradientCheck : public testing::TestWithParam<GradientMode> {};

// The weighted sum over the experts of each row, as a layer of experts computes it behind the
// activation. The steps of differences are too small to change which experts are chosen.
struct ExpertCheck {
  static constexpr std::int64_t kRows = 6, kExperts = 4, kChosen = 2, kIn = 3, kOut = 5;
  static constexpr std::int64_t kSlots = kRows * kChosen;

  ExpertCheck(ExpertRule expert_rule, Random& random)
      : rule(expert_rule),
        logits(HostTensor::random(DType::kF64, shape(kRows, kExperts), random, 2.0)),
        act(random_f64(shape(kSlots, kIn), random)),
        weights(random_f64(shape(kExperts, kOut * kIn), random)),
        biases(random_f64(shape(kExperts, kOut), random)),
        dy(random_f64(shape(kRows, kOut), random)) {}

  ExpertRows rows() const { return {order.view(), offsets.view(), kChosen}; }
  double loss() const {
    kernels().choose_experts({}, {logits.view(), index.view(), weight.view(), rule});
    kernels().sort_slots({}, {index.view(), order.view(), place.view(), offsets.view()});
    kernels().expert_forward(
        {}, {rows(), {act.view(), false}, whole_rows(weights.view()), results.view()});
    kernels().add_expert_bias({}, {rows(), whole_rows(biases.view()), results.view()});
    kernels().sum_expert_rows({}, {results.view(), place.view(), weight.view(), y.view()});
    return dot(y, dy);
  }

  ExpertRule rule;
  HostTensor logits, act, weights, biases, dy;
  HostTensor index{DType::kI32, shape(kRows, kChosen)}, order{DType::kI32, shape(kSlots)};
  HostTensor place{DType::kI32, shape(kRows, kChosen)}, offsets{DType::kI32, shape(kExperts + 1)};
  HostTensor weight{DType::kF64, shape(kRows, kChosen)};
  HostTensor results{DType::kF64, shape(kSlots, kOut)}, y{DType::kF64, shape(kRows, kOut)};
};

TEST_P(ExpertGradientCheck, OfTheWeightedSum) {
  for (Random random(23); const int n : {0, 1, 2, 3}) {
    const auto scores = n < 2 ? ExpertScores::kSoftmax : ExpertScores::kSigmoid;
    ExpertCheck check({.normalizes = n % 2 == 1, .scores = scores, .scale = 1.5F}, random);
    check.loss();
    Gradient dact(check.act.view().shape, random);
    Gradient dlogits(check.logits.view().shape, random);
    Gradient dweights(check.weights.view().shape, GetParam(), random);
    Gradient dbiases(check.biases.view().shape, GetParam(), random);
    const HostTensor dweight(check.weight);
    const HostTensor weighted(check.act);
    const StridedRows from = whole_rows(check.weights.view());
    const ExpertSide dy = {check.dy.view(), true};
    kernels().expert_backward_input({}, {check.rows(), dy, from, dact.value.view()});
    kernels().weigh_expert_rows(
        {}, {check.order.view(), check.weight.view(), dact.value.view(), check.act.view(),
             dweight.view(), dact.value.view(), weighted.view()});
    const StridedRows to = whole_rows(dweights.value.view());
    const ExpertSide act = {weighted.view(), false};
    kernels().expert_backward_weight({}, {check.rows(), dy, act, to, GetParam()});
    const StridedRows biases_to = whole_rows(dbiases.value.view());
    kernels().expert_bias_gradient({},
                                   {check.rows(), dy, check.weight.view(), biases_to, GetParam()});
    const StridedRows biases = whole_rows(check.biases.view());
    kernels().add_bias_share({}, {check.rows(), dy, biases, dweight.view()});
    kernels().choose_experts_backward({}, {check.logits.view(), check.index.view(), dweight.view(),
                                           dlogits.value.view(), check.rule});
    expect_gradient(check.act, dact, [&] { return check.loss(); });
    expect_gradient(check.weights, dweights, [&] { return check.loss(); });
    expect_gradient(check.biases, dbiases, [&] { return check.loss(); });
    expect_gradient(check.logits, dlogits, [&] { return check.loss(); });
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ExpertGradientCheck,
                         testing::Values(GradientMode::kAssign, GradientMode::kAccumulate),
                         [](const testing::TestParamInfo<GradientMode>& info) {
                           return info.param == GradientMode::kAssign ? "assign" : "accumulate";
                         });

}  // namespace
}  // namespace terrace::test
