#include "runtime/model/decoder_units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/runtime/model/block_run.h"
#include "tests/runtime/model/small_models.h"

// The results of blocks with the decoder's options, compared with blocks that have other options.
namespace terrace {
namespace {

constexpr BatchShape kBatch = {2, 6};

// Returns a model whose attention and feed-forward both read one layer norm without a bias, and are
// added to the same hidden states.
ModelConfig parallel_model() {
  ModelConfig config =
      small_model("llama", {.layers = 1, .width = 32, .head_width = 8, .intermediate = 48});
  config.norm.has_mean = true;
  config.norm.has_bias = false;
  config.has_projection_bias = true;  // only one tensor-parallel rank adds it
  config.branch_order = BranchOrder::kParallel;
  return config;
}

std::vector<float> random_values(std::size_t count, std::uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<float> random_hidden(const ModelConfig& config, std::uint32_t seed) {
  return random_values(static_cast<std::size_t>(kBatch.rows() * config.width), seed, 1.0F);
}

// Returns random parameters of a model's block: norms around 1, all else around 0.
std::vector<float> random_parameters(const ModelConfig& config) {
  const UnitLayout block = parameter_layout(config).at(1);
  std::vector<float> values = random_values(static_cast<std::size_t>(block.elements), 3, 0.2F);
  for (const ParameterTensor& tensor : block.tensors) {
    if (tensor.init != Init::kOnes) continue;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      values[static_cast<std::size_t>(tensor.offset + i)] += 1.0F;
    }
  }
  return values;
}

// Returns the parameters of `from` for another layout of the same model. A tensor that `from` does
// not have is copied from the attention's norm, and the kinds in `zero` are 0.
std::vector<float> parameters_for(const ModelConfig& config, const ModelConfig& from,
                                  std::span<const float> values,
                                  std::span<const ParameterKind> zero) {
  const UnitLayout source = parameter_layout(from).at(1);
  const UnitLayout target = parameter_layout(config).at(1);
  std::vector<float> result(static_cast<std::size_t>(target.elements));
  for (const ParameterTensor& tensor : target.tensors) {
    if (std::ranges::find(zero, tensor.kind) != zero.end()) continue;
    const ParameterTensor* same = source.find(tensor.kind);
    if (same == nullptr) same = source.find(ParameterKind::kAttentionNorm);
    std::copy_n(values.begin() + same->offset, tensor.elements(), result.begin() + tensor.offset);
  }
  return result;
}

void expect_near(std::span<const float> values, std::span<const float> wanted) {
  ASSERT_EQ(values.size(), wanted.size());
  // Allows for sums of some hundred products in fp32, of numbers around 1.
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], wanted[i], 2e-4F) << i;
}

std::vector<float> sum_less(std::span<const float> a, std::span<const float> b,
                            std::span<const float> less) {
  std::vector<float> result(a.begin(), a.end());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] += b[i] - less[i];
  return result;
}

// A sequential block with an empty branch gives x plus the other branch. Two such blocks make a
// parallel one.
TEST(ParallelBranches, AreBothOfOneNorm) {
  const ModelConfig config = parallel_model();
  ModelConfig sequential = config;
  sequential.branch_order = BranchOrder::kSequential;
  const std::vector<float> parameters = random_parameters(config);
  constexpr ParameterKind kNoFeedForward[] = {ParameterKind::kDown};
  constexpr ParameterKind kNoAttention[] = {ParameterKind::kProjection,
                                            ParameterKind::kProjectionBias};
  BlockRun both(config, {kBatch}, parameters);
  BlockRun attention(sequential, {kBatch},
                     parameters_for(sequential, config, parameters, kNoFeedForward));
  BlockRun feed_forward(sequential, {kBatch},
                        parameters_for(sequential, config, parameters, kNoAttention));

  const std::vector<float> x = random_hidden(config, 5);
  expect_near(both.forward(x), sum_less(attention.forward(x), feed_forward.forward(x), x));

  const std::vector<float> dy = random_hidden(config, 6);
  expect_near(both.backward(dy), sum_less(attention.backward(dy), feed_forward.backward(dy), dy));
  using enum ParameterKind;
  for (const ParameterKind kind : {kQuery, kKey, kValue, kProjection, kProjectionBias}) {
    expect_near(both.gradient_of(kind), attention.gradient_of(kind));
  }
  for (const ParameterKind kind : {kGate, kUp, kDown}) {
    expect_near(both.gradient_of(kind), feed_forward.gradient_of(kind));
  }
  const std::vector<float> of_attention = attention.gradient_of(kAttentionNorm);
  const std::vector<float> none(of_attention.size());
  expect_near(both.gradient_of(kAttentionNorm),
              sum_less(of_attention, feed_forward.gradient_of(kFeedForwardNorm), none));
}

class ParallelBranchesOfRanks : public testing::TestWithParam<bool> {};

TEST_P(ParallelBranchesOfRanks, AreThoseOfOneRank) {
  const ModelConfig config = parallel_model();
  const std::vector<float> parameters = random_parameters(config);
  BlockRun one(config, {kBatch}, parameters);
  BlockRun two(config, {.batch = kBatch, .ranks = 2, .shares_rows = GetParam()}, parameters);
  const std::vector<float> x = random_hidden(config, 5);
  const std::vector<float> dy = random_hidden(config, 6);
  expect_near(two.forward(x), one.forward(x));
  expect_near(two.backward(dy), one.backward(dy));
}

std::int64_t count(const std::vector<UnitStep>& steps, UnitStep::Kind kind) {
  return std::ranges::count(steps, kind, &UnitStep::kind);
}

TEST_P(ParallelBranchesOfRanks, EnterAndLeaveOnce) {
  const bool shares_rows = GetParam();
  const ModelConfig config = parallel_model();
  const BlockRun two(config, {.batch = kBatch, .ranks = 2, .shares_rows = shares_rows},
                     random_parameters(config));
  const UnitModel& unit = two.model();
  using enum UnitStep::Kind;
  EXPECT_EQ(count(unit.forward, kSum), 1);
  EXPECT_EQ(count(unit.forward, kGather), shares_rows ? 1 : 0);
  EXPECT_EQ(count(unit.recompute, kSum), 0);
  EXPECT_EQ(count(unit.backward, kSum), 1);
  EXPECT_EQ(count(unit.backward, kGather), shares_rows ? 2 : 0);
  EXPECT_EQ(count(unit.forward, kCompute), 3);  // norm, branches, residual
}

INSTANTIATE_TEST_SUITE_P(SharesRows, ParallelBranchesOfRanks, testing::Bool());

TEST(LayerNorms, WithoutBiasHaveNoneAnywhere) {
  const std::vector<UnitLayout> layout = parameter_layout(parallel_model());
  using enum ParameterKind;
  EXPECT_NE(layout.at(1).find(kAttentionNorm), nullptr);
  EXPECT_EQ(layout.at(1).find(kFeedForwardNorm), nullptr);  // one norm is for both branches
  for (const UnitLayout& unit : layout) {
    for (const ParameterKind kind : {kAttentionNormBias, kFeedForwardNormBias, kFinalNormBias}) {
      EXPECT_EQ(unit.find(kind), nullptr);
    }
  }
}

}  // namespace
}  // namespace terrace
