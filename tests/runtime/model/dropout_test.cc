#include "runtime/model/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/philox.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/model/block_run.h"
#include "tests/runtime/model/random_block.h"
#include "tests/runtime/model/small_models.h"

// Dropout's numbers, and a block whose adapters drop elements of their inputs: its gradients beside
// finite differences, and which elements are dropped.
namespace terrace {
namespace {

constexpr double kProbability = 0.6;
constexpr BatchShape kSampled = {.sequences = 2, .positions = 6, .has_samples = true};

ModelConfig dropping_model(std::string_view family, double dropout) {
  AdapterOptions adapter;
  adapter.rank = 3;
  adapter.alpha = 5;
  adapter.dropout = dropout;
  return with_adapter(
      small_model(family, {.layers = 2, .width = 32, .head_width = 8, .intermediate = 50}), adapter,
      {});
}

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(DropoutNumbers, AreTheThresholdAndTheFactor) {
  EXPECT_EQ(dropout_of(0).threshold, 0U);
  EXPECT_EQ(dropout_of(0).factor, 1.0F);
  EXPECT_EQ(dropout_of(0.25).threshold, 0x40000000U);
  EXPECT_EQ(dropout_of(0.25).factor, 4.0F / 3);
  EXPECT_EQ(dropout_of(0.5).threshold, 0x80000000U);
  EXPECT_EQ(dropout_of(0.99).threshold, 0xFD70A3D7U);
  EXPECT_EQ(dropout_of(0x1p-32).threshold, 1U);
  EXPECT_EQ(dropout_of(0x1p-34).threshold, 0U);
}

// Both bounds are four standard deviations.
TEST(DropoutNumbers, DropTheShareThatIsAskedForAndKeepTheMean) {
  constexpr std::int64_t kRows = 1000;
  constexpr std::int64_t kColumns = 1000;
  constexpr double kElements = kRows * kColumns;
  std::vector<float> ones(kRows * kColumns, 1);
  std::vector<float> dropped(ones.size());
  std::vector<std::int32_t> samples(kRows, 3);
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  for (const double probability : {0.01, 0.25, 0.5, 0.9}) {
    Dropout op = dropout_of(probability);
    const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
    op.x = view(bytes(ones), DType::kF32, kRows, kColumns);
    op.y = view(bytes(dropped), DType::kF32, kRows, kColumns);
    op.samples = view(bytes(samples), DType::kI32, kRows);
    op.positions = kRows;
    op.seed = dropout_key(7);
    cpu_kernels().dropout(context, op);
    const auto zeros = static_cast<double>(std::ranges::count(dropped, 0.0F));
    const double deviation = std::sqrt(kElements * probability * (1 - probability));
    EXPECT_NEAR(zeros, kElements * probability, 4 * deviation) << probability;
    EXPECT_NEAR(product(ones, dropped), kElements, 4 * deviation / (1 - probability))
        << probability;
  }
}

TEST(DropoutNumbers, HaveAKeyForEachSeed) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 100; ++seed) keys.insert(dropout_key(seed));
  EXPECT_EQ(keys.size(), 100U);
  EXPECT_FALSE(keys.contains(1));
}

// Returns the slope of loss_of along `direction`: a central difference.
template <typename LossOf>
double slope(std::vector<float> values, std::size_t first, std::span<const float> direction,
             const LossOf& loss_of) {
  constexpr float kStep = 3e-3F;
  const auto move = [&](float by) {
    for (std::size_t i = 0; i < direction.size(); ++i) values[first + i] += by * direction[i];
  };
  move(kStep);
  const double after = loss_of(values);
  move(-2 * kStep);
  return (after - loss_of(values)) / (2 * kStep);
}

class DroppingBlock : public testing::TestWithParam<std::string_view> {
 protected:
  std::vector<float> rows(std::uint32_t seed, const BatchShape& batch = kSampled) const {
    return random_numbers(static_cast<std::size_t>(batch.rows() * config_.width), seed, 1.0F);
  }

  // Expects that the loss rises along a gradient as fast as the gradient says. `first` is the place
  // of the gradient's numbers in `values`.
  template <typename LossOf>
  static void expect_slope(const std::vector<float>& gradient, const std::vector<float>& values,
                           std::size_t first, const LossOf& loss_of, const std::string& what) {
    const double norm = std::sqrt(product(gradient, gradient));
    ASSERT_GT(norm, 0.5) << what;
    std::vector<float> direction = gradient;
    for (float& value : direction) value /= static_cast<float>(norm);
    EXPECT_NEAR(slope(values, first, direction, loss_of), norm, 0.01 * norm) << what;
  }

  // Returns the columns of an adapter's A whose gradient is 0, up to a rounding: in all rows that
  // add to it, the element of A's input was dropped.
  std::set<std::int64_t> dropped_columns(const BlockRun& run, ParameterKind kind) const {
    const ParameterTensor& a = *layout_.find(kind);
    const std::vector<float> gradient = run.gradient_of(kind);
    const float zero = 1e-5F * std::abs(*std::ranges::max_element(
                                   gradient, {}, [](float value) { return std::abs(value); }));
    std::set<std::int64_t> columns;
    for (std::int64_t column = 0; column < a.columns; ++column) {
      bool is_zero = true;
      for (std::int64_t row = 0; row < a.rows; ++row) {
        const float value = gradient[static_cast<std::size_t>(row * a.columns + column)];
        is_zero = is_zero && std::abs(value) <= zero;
      }
      if (is_zero) columns.insert(column);
    }
    return columns;
  }

  const ModelConfig config_ = dropping_model(GetParam(), kProbability);
  const std::vector<float> values_ = random_block(config_);
  const UnitLayout layout_ = parameter_layout(config_).at(2);
};

// If the backward dropped other elements than the forward, the slopes would differ by tens of
// percent.
TEST_P(DroppingBlock, HasTheGradientsOfWhatIsLeft) {
  const std::vector<float> x = rows(5);
  const std::vector<float> dy = rows(6);
  BlockRun run(config_, {kSampled}, values_, 2);
  run.forward(x);
  const std::vector<float> dx = run.backward(dy);
  const auto loss_of_input = [&](const std::vector<float>& moved) {
    return product(BlockRun(config_, {kSampled}, values_, 2).forward(moved), dy);
  };
  expect_slope(dx, x, 0, loss_of_input, "input");
  const auto loss_of_values = [&](const std::vector<float>& moved) {
    return product(BlockRun(config_, {kSampled}, moved, 2).forward(x), dy);
  };
  for (const ParameterTensor& tensor : layout_.tensors) {
    if (!is_adapter(tensor.kind)) continue;
    expect_slope(run.gradient_of(tensor.kind), values_, static_cast<std::size_t>(tensor.offset),
                 loss_of_values, tensor.name);
  }
}

// The numbers of the layers. A checkpoint continues with other masks if they change.
const std::map<ParameterKind, std::uint32_t>& layer_numbers() {
  static const std::map<ParameterKind, std::uint32_t> kNumbers = {
      {ParameterKind::kQueryA, 0},      {ParameterKind::kKeyA, 1},  {ParameterKind::kValueA, 2},
      {ParameterKind::kProjectionA, 3}, {ParameterKind::kGateA, 4}, {ParameterKind::kUpA, 5},
      {ParameterKind::kDownA, 6}};
  return kNumbers;
}

struct DroppedRow {
  std::uint64_t seed = 0;
  std::int64_t unit = 1;
  std::int64_t sample = 0;
  std::int64_t position = 0;
};

bool is_dropped(const DroppedRow& row, std::uint32_t layer, std::int64_t column) {
  const std::uint64_t index =
      (static_cast<std::uint64_t>(row.position) << 32U) + static_cast<std::uint64_t>(column) / 4;
  const auto words =
      philox({dropout_key(row.seed)}, {index, static_cast<std::uint32_t>(8 * row.unit) + layer,
                                       static_cast<std::uint32_t>(row.sample)});
  return words[static_cast<std::size_t>(column % 4)] < std::round(kProbability * 0x1p32);
}

// A micro-batch of few rows, in which many columns are dropped in all of them.
TEST_P(DroppingBlock, DropsByTheSeedTheUnitTheLayerTheSampleAndThePosition) {
  constexpr BatchShape kFew = {.sequences = 2, .positions = 2, .has_samples = true};
  for (const DroppedRow& first : {DroppedRow{0, 1, 0}, DroppedRow{99, 2, 7}}) {
    BlockRun run(config_,
                 {.batch = kFew,
                  .first_sample = static_cast<std::int32_t>(first.sample),
                  .dropout_seed = first.seed},
                 values_, first.unit);
    run.forward(rows(5, kFew));
    run.backward(rows(6, kFew));
    for (const auto& [kind, layer] : layer_numbers()) {
      const ParameterTensor* const a = layout_.find(kind);
      if (a == nullptr) continue;
      // The query at position 0 sees one key, so its gradient is 0, up to a rounding.
      const bool is_query =
          kind == ParameterKind::kQueryA && layout_.find(ParameterKind::kKeyA) != nullptr;
      std::set<std::int64_t> expected;
      for (std::int64_t column = 0; column < a->columns; ++column) {
        bool is_dropped_always = true;
        for (std::int64_t r = is_query ? 1 : 0; r < kFew.rows(); r += is_query ? 2 : 1) {
          DroppedRow row = first;
          row.sample += r / kFew.positions;
          row.position = r % kFew.positions;
          is_dropped_always = is_dropped_always && is_dropped(row, layer, column);
        }
        if (is_dropped_always) expected.insert(column);
      }
      EXPECT_GT(expected.size(), 0U);
      EXPECT_EQ(dropped_columns(run, kind), expected) << a->name;
    }
  }
}

// The second sample has the same elements dropped where it is the first of a micro-batch.
TEST_P(DroppingBlock, DropsTheSameOfASampleInAnyMicroBatch) {
  const std::vector<float> x = rows(5);
  const std::size_t half = x.size() / 2;
  const std::vector<float> second =
      BlockRun(config_, {.batch = kSampled, .first_sample = 1}, values_).forward(x);
  std::vector<float> both = x;
  std::ranges::copy(std::span(x).first(half), both.begin() + static_cast<std::ptrdiff_t>(half));
  const std::vector<float> doubled = BlockRun(config_, {.batch = kSampled}, values_).forward(both);
  EXPECT_TRUE(std::ranges::equal(std::span(doubled).subspan(half), std::span(second).first(half)));
}

// A rank's columns of the down projection's input begin at column 25.
TEST_P(DroppingBlock, DropsTheSameInTheColumnsOfARank) {
  const std::vector<float> x = rows(5);
  const std::vector<float> dy = rows(6);
  BlockRun one(config_, {.batch = kSampled}, values_);
  const std::vector<float> y = one.forward(x);
  const std::vector<float> dx = one.backward(dy);
  const auto expect_near = [](std::span<const float> got, std::span<const float> want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-4) << i;
  };
  for (const bool shares_rows : {false, true}) {
    BlockRun ranks(config_, {.batch = kSampled, .ranks = 2, .shares_rows = shares_rows}, values_);
    expect_near(ranks.forward(x), y);
    expect_near(ranks.backward(dy), dx);
    for (const auto& [kind, layer] : layer_numbers()) {
      if (layout_.find(kind) == nullptr) continue;
      expect_near(ranks.whole_gradient_of(kind), one.gradient_of(kind));
    }
  }
}

// Nothing is dropped in a batch with sample -1 (an evaluation), nor in a batch without the list of
// samples (a sampler).
TEST_P(DroppingBlock, DropsNothingOutsideOfTraining) {
  const std::vector<float> x = rows(5);
  const ModelConfig whole = dropping_model(GetParam(), 0);
  const std::vector<float> want = BlockRun(whole, {{2, 6}}, values_).forward(x);
  EXPECT_EQ(BlockRun(config_, {.batch = kSampled, .first_sample = -1}, values_).forward(x), want);
  EXPECT_EQ(BlockRun(config_, {{2, 6}}, values_).forward(x), want);
  EXPECT_NE(BlockRun(config_, {kSampled}, values_).forward(x), want);
}

INSTANTIATE_TEST_SUITE_P(Families, DroppingBlock, testing::Values("llama", "gpt2", "phi3", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
