#include <gtest/gtest.h>

#include "tests/runtime/ranks_fixture.h"

// Tensor-parallel ranks as threads: they train as one rank does, within a bound, and on one mesh
// nothing else changes bits.
namespace terrace {
namespace {

EngineOptions options_for(ModelFamily family, bool tied, DType type) {
  EngineOptions options = tiny_options(tiny_model(family, tied, false), type);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

// The largest differences of losses and norms, relative.
struct Distance {
  double loss = 0;
  double norm = 0;
};

Distance distance(const Curve& a, const Curve& b) {
  Distance most;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    most.loss = std::max(most.loss, std::abs(a.losses[i] / b.losses[i] - 1));
    most.norm = std::max(most.norm, std::abs(a.norms[i] / b.norms[i] - 1));
  }
  return most;
}

Curve first_step(const Curve& curve) { return {{curve.losses.front()}, {curve.norms.front()}}; }

struct TensorCase {
  const char* name;
  ModelFamily family;
  bool tied;
  int ranks;
  bool shares_rows;
};

class TensorRanks : public testing::TestWithParam<TensorCase> {};

TEST_P(TensorRanks, TrainAsOneRankDoes) {
  const TensorCase& tested = GetParam();
  EngineOptions options = options_for(tested.family, tested.tied, DType::kF32);
  options.sequence_parallel = tested.shares_rows;
  const RankedRun one = train_ranks(options, 1, 0);
  const RankedRun shared = train_ranks(options, MeshShape{.tensor = tested.ranks}, 0);
  for (const Curve& curve : shared.curves) EXPECT_EQ(curve, shared.curves[0]);
  // The first step is the same but for roundings. From then on AdamW, which divides each gradient
  // by its own size, makes whole steps of what is only rounding in gradients near zero.
  const Distance first = distance(first_step(shared.curves[0]), first_step(one.curves[0]));
  EXPECT_LT(first.loss, 1e-7);
  EXPECT_LT(first.norm, 1e-6);
  const Distance all = distance(shared.curves[0], one.curves[0]);
  EXPECT_LT(all.loss, 1e-5);
  EXPECT_LT(all.norm, 1e-3);
  EXPECT_NEAR(shared.evaluations[0], one.evaluations[0], 1e-5 * one.evaluations[0]);
}

constexpr auto kLlama = ModelFamily::kLlama;
constexpr auto kGpt2 = ModelFamily::kGpt2;
const TensorCase kTensorCases[] = {
    {"llama_tied", kLlama, true, 2, true},
    {"llama_tied_all_rows", kLlama, true, 2, false},
    {"llama_untied", kLlama, false, 2, true},
    {"gpt2_tied", kGpt2, true, 2, true},
    {"gpt2_untied_all_rows", kGpt2, false, 2, false},
    {"gpt2_four", kGpt2, true, 4, true},
};

INSTANTIATE_TEST_SUITE_P(Shapes, TensorRanks, testing::ValuesIn(kTensorCases),
                         [](const testing::TestParamInfo<TensorCase>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace terrace
