#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/host_tensor.h"
#include "tests/kernels/shared_kernels.h"

// Which experts are chosen where logits are equal or not numbers.
namespace terrace::test {
namespace {

constexpr double kNaN = NAN;

struct Choice {
  std::vector<double> logits;
  std::vector<double> chosen;  // of three
};

const Choice kChoices[] = {
    {{1, 5, 3, 4, 2}, {1, 2, 3}},
    {{2, 2, 2, 2, 2}, {0, 1, 2}},
    {{1, 2, 3, 2, 2}, {1, 2, 3}},              // of equal logits the lower experts
    {{kNaN, 1, kNaN, 2, -5}, {1, 3, 4}},       // numbers first
    {{kNaN, kNaN, kNaN, kNaN, 7}, {0, 1, 4}},  // then the lower ones
    {{kNaN, kNaN, kNaN, kNaN, kNaN}, {0, 1, 2}},
    {{-INFINITY, 3, -INFINITY, 4, -INFINITY}, {0, 1, 3}},
    {{0.0, -0.0, 0.0, -0.0, -1}, {0, 1, 2}},
};

bool has_nan(const Choice& choice) {
  for (const double logit : choice.logits) {
    if (std::isnan(logit)) return true;
  }
  return false;
}

using Setting = std::tuple<const KernelTable& (*)(), DType, bool>;

class ExpertChoice : public testing::TestWithParam<Setting> {};

TEST_P(ExpertChoice, IsOfTheLargestLogitsAndInRange) {
  const auto [table, type, normalizes] = GetParam();
  const auto R = static_cast<std::int64_t>(std::size(kChoices));
  HostTensor logits(type, shape(R, 5));
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t e = 0; e < 5; ++e) logits.set(r * 5 + e, kChoices[r].logits[e]);
  }
  const HostTensor index(DType::kI32, shape(R, 3));
  const HostTensor weight(DType::kF32, shape(R, 3));
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  table().choose_experts(context,
                         {logits.view(), index.view(), weight.view(), {.normalizes = normalizes}});
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(index.at(r * 3 + j), kChoices[r].chosen[static_cast<std::size_t>(j)]) << r;
      EXPECT_EQ(std::isnan(weight.at(r * 3 + j)), has_nan(kChoices[r])) << r;
    }
  }
}

// The bounds of the conformance tests leave room for a rounding, so they do not notice one.
TEST_P(ExpertChoice, RoundsWeightsWhereTheRuleSaysSo) {
  const auto [table, type, normalizes] = GetParam();
  Random random(5);
  const HostTensor logits = HostTensor::random(type, shape(9, 5), random, 3.0);
  const HostTensor index(DType::kI32, shape(9, 3));
  const HostTensor weight(DType::kF32, shape(9, 3));
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  for (const bool rounds : {false, true}) {
    table().choose_experts(context,
                           {logits.view(), index.view(), weight.view(), {normalizes, rounds}});
    int rounded = 0;
    for (std::int64_t i = 0; i < 27; ++i) {
      HostTensor narrow(DType::kBF16, shape(1));
      narrow.set(0, weight.at(i));
      rounded += narrow.at(0) == weight.at(i) ? 1 : 0;
    }
    const bool is_rounded = rounds && type == DType::kBF16;
    EXPECT_TRUE(is_rounded ? rounded == 27 : rounded < 9) << rounded;
  }
}

struct GroupedChoice {
  std::vector<double> logits;
  std::vector<double> bias;    // three addends of each
  std::vector<double> chosen;  // of two
};

const std::vector<double> kNoBias(18, 0.0);

// Groups of two experts, of which two are chosen, and then two experts.
const GroupedChoice kGroupedChoices[] = {
    {{9, -9, 1, 1, 2, 2}, kNoBias, {4, 5}},    // the best expert is in the worst group
    {{0, 0, 0, 0, 0, 0}, kNoBias, {0, 1}},     // of equal groups the lower ones
    {{kNaN, 9, 0, 0, 1, 1}, kNoBias, {4, 5}},  // a group with a NaN comes last
    // The bias decides, the sum of its addends.
    {{0, 0, 0, 0, 0, 0}, {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0}, {2, 4}},
};

TEST_P(ExpertChoice, BySigmoidsIsInTheBestGroups) {
  const auto [table, type, normalizes] = GetParam();
  const ExpertRule rule = {
      .normalizes = normalizes, .scores = ExpertScores::kSigmoid, .groups = 3, .chosen_groups = 2};
  for (const GroupedChoice& choice : kGroupedChoices) {
    HostTensor logits(type, shape(1, 6));
    HostTensor bias(type, shape(3, 6));
    for (std::int64_t e = 0; e < 6; ++e) logits.set(e, choice.logits[e]);
    for (std::int64_t i = 0; i < 18; ++i) bias.set(i, choice.bias[i]);
    const HostTensor index(DType::kI32, shape(1, 2));
    const HostTensor weight(DType::kF32, shape(1, 2));
    WorkerArena workers(1);
    KernelContext context;
    context.workers = &workers;
    table().choose_experts(context,
                           {logits.view(), index.view(), weight.view(), rule, bias.view()});
    EXPECT_EQ(index.at(0), choice.chosen[0]);
    EXPECT_EQ(index.at(1), choice.chosen[1]);
    if (std::isnan(choice.logits[0])) continue;
    // The bias has no part in the weights: equal logits have equal weights.
    const double one = 1 / (1 + std::exp(-choice.logits[static_cast<std::size_t>(index.at(0))]));
    for (std::int64_t j = 0; j < 2; ++j) {
      EXPECT_NEAR(weight.at(j), normalizes ? 0.5 : one, 1e-6);
    }
  }
}

// The loss is the sum of dy * y, which the reference computes in fp64.
TEST(GateGradient, IsThatOfDifferences) {
  constexpr double kStep = 1e-5;
  Random random(24);
  HostTensor x = HostTensor::random(DType::kF64, shape(5, 7), random);
  HostTensor logit = HostTensor::random(DType::kF64, shape(5, 1), random, 3.0);
  const HostTensor dy = HostTensor::random(DType::kF64, shape(5, 7), random);
  const HostTensor y(DType::kF64, shape(5, 7));
  const HostTensor dx(DType::kF64, shape(5, 7));
  const HostTensor dlogit(DType::kF64, shape(5, 1));
  const KernelTable& table = reference_kernels();
  const auto loss = [&] {
    table.gate_rows({}, {x.view(), logit.view(), y.view()});
    double sum = 0;
    for (std::int64_t i = 0; i < 35; ++i) sum += dy.at(i) * y.at(i);
    return sum;
  };
  table.gate_rows_backward({}, {x.view(), logit.view(), dy.view(), dx.view(), dlogit.view()});
  for (const auto& [input, gradient] : {std::pair{&x, &dx}, std::pair{&logit, &dlogit}}) {
    for (std::int64_t i = 0; i < input->view().elements(); ++i) {
      const double at = input->at(i);
      input->set(i, at + kStep);
      const double above = loss();
      input->set(i, at - kStep);
      const double below = loss();
      input->set(i, at);
      EXPECT_NEAR((above - below) / (2 * kStep), gradient->at(i), 1e-8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tables, ExpertChoice,
    testing::Combine(testing::Values(reference_kernels, cpu_kernels, shared_kernels),
                     testing::Values(DType::kF32, DType::kBF16), testing::Bool()));

}  // namespace
}  // namespace terrace::test
