#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
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

INSTANTIATE_TEST_SUITE_P(
    Tables, ExpertChoice,
    testing::Combine(testing::Values(reference_kernels, cpu_kernels, shared_kernels),
                     testing::Values(DType::kF32, DType::kBF16), testing::Bool()));

}  // namespace
}  // namespace terrace::test
