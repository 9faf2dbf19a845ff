#include "runtime/data/sample_mix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "runtime/data/dataset.h"
#include "tests/runtime/temporary_directory.h"

// Samples from several paths in proportion to weights.
namespace terrace {
namespace {

TEST(SampleMix, KeepsTheProportionsAllTheWay) {
  const std::vector<double> weights = {5, 0.2, 3, 1.8};
  const SampleMix mix(weights);
  std::vector<std::int64_t> drawn(weights.size(), 0);
  for (std::int64_t sample = 0; sample < 3 * SampleMix::kPeriod; ++sample) {
    const SampleMix::Draw draw = mix.draw(sample);
    EXPECT_EQ(draw.sample, drawn.at(draw.set)++);  // the samples of each set come in turn
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double wanted = weights[i] / 10 * static_cast<double>(sample + 1);
      // Allows one sample for each set, and the error over three periods of rounding a weight to a
      // part of a period.
      ASSERT_LT(std::abs(static_cast<double>(drawn[i]) - wanted), 5) << sample << ' ' << i;
    }
  }
}

TEST(SampleMix, RefusesAWeightThatIsNeverDrawn) {
  const std::vector<double> weights = {1, 1e-6};
  EXPECT_THROW(SampleMix{weights}, ConfigError);
  EXPECT_NO_THROW(SampleMix(std::vector<double>{7}));
}

// Three texts, each of one letter of its own.
class WeightedData : public testing::Test {
 protected:
  WeightedData() {
    options_.data = {directory_.write("a", std::string(400, 'a')),
                     directory_.write("b", std::string(100, 'b')),
                     directory_.write("c", std::string(4000, 'c'))};
    options_.vocabulary = 256;
    options_.sequence_length = 8;
    options_.seed = 7;
    options_.validation_fraction = 0;
  }

  // Counts the first samples by letter.
  std::map<std::int32_t, int> letters(const Dataset& dataset, std::int64_t count) const {
    std::map<std::int32_t, int> found;
    for (std::int64_t sample = 0; sample < count; ++sample) {
      std::vector<std::int32_t> tokens(8);
      std::vector<std::int32_t> targets(8);
      dataset.fill_micro_batch(sample, {tokens, targets});
      EXPECT_EQ(std::set(tokens.begin(), tokens.end()).size(), 1U);
      ++found[tokens[0]];
    }
    return found;
  }

  TemporaryDirectory directory_;
  DatasetOptions options_;
};

TEST_F(WeightedData, IsDrawnInProportionWhateverItsLength) {
  options_.weights = {1, 2, 1};
  const Dataset dataset(options_);
  EXPECT_EQ(dataset.training_tokens(), 4500);
  EXPECT_EQ(dataset.samples_per_epoch(), 49 + 12 + 499);
  EXPECT_EQ(letters(dataset, 400),
            (std::map<std::int32_t, int>{{'a', 100}, {'b', 200}, {'c', 100}}));
}

TEST_F(WeightedData, ValidatesOnTheTailOfEachPath) {
  options_.weights = {1, 2, 1};
  options_.validation_fraction = 0.25;
  const Dataset dataset(options_);
  EXPECT_EQ(dataset.validation_tokens(), 100 + 25 + 1000);
  std::map<std::int32_t, int> counted;
  for (std::int64_t sample = 0; sample < dataset.validation_samples(); ++sample) {
    std::vector<std::int32_t> tokens(8);
    std::vector<std::int32_t> targets(8);
    dataset.fill_validation_batch(sample, {tokens, targets});
    for (const std::int32_t target : targets) counted[target] += target < 0 ? 0 : 1;
  }
  counted.erase(-1);
  EXPECT_EQ(counted, (std::map<std::int32_t, int>{{'a', 99}, {'b', 24}, {'c', 999}}));
}

// Ranks compare the hash, even if none of them validates.
TEST_F(WeightedData, HasAHashOfNoValidation) {
  options_.validation_fraction = 0;
  const auto of_one_sequence = Dataset(options_).validation_hash();
  options_.weights = {1, 2, 1};
  EXPECT_EQ(Dataset(options_).validation_hash(), of_one_sequence);
}

TEST_F(WeightedData, HasAnotherHashWithOtherWeights) {
  options_.weights = {1, 2, 1};
  const auto hash = Dataset(options_).training_hash();
  EXPECT_EQ(Dataset(options_).training_hash(), hash);
  options_.weights = {1, 2, 2};
  EXPECT_NE(Dataset(options_).training_hash(), hash);
}

}  // namespace
}  // namespace terrace
