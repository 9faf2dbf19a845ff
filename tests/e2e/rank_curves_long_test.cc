#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/tiny_training.h"

// Another number of data-parallel ranks adds gradients in another order. Losses then differ by
// roundings and by their effect on the training. docs/numerics.md says how far they may differ.
namespace terrace {
namespace {

constexpr int kSamples = 8;
constexpr const char* kStepCount = "200";
constexpr double kGrowth = 4;

struct Rounding {
  const char* precision;
  double unit;  // roundoff
};

class RankCurves : public testing::TestWithParam<Rounding> {};

TEST_P(RankCurves, Of200StepsLieWithinTheBound) {
  const Rounding& rounding = GetParam();
  const TinyTraining training(4, 64);
  const auto train = [&](int ranks, int stage) {
    const std::string run = "dp" + std::to_string(ranks);
    training.train(run, {"--max-steps", kStepCount, "--precision", rounding.precision,
                         "--learning-rate", "1e-3", "--warmup-steps", "20", "--local-ranks",
                         std::to_string(ranks), "--zero-stage", std::to_string(stage),
                         "--gradient-accumulation-steps", std::to_string(kSamples / ranks)});
    return training.rows(run);
  };
  const std::vector<MetricsRow> alone = train(1, 0);
  EXPECT_LT(alone.back().columns.at("loss"), 0.8 * alone.front().columns.at("loss"));
  for (const int ranks : {2, 4}) {
    const std::vector<MetricsRow> rows = train(ranks, 3);
    ASSERT_EQ(rows.size(), alone.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double loss = alone[i].columns.at("loss");
      const double bound = kGrowth * std::sqrt(static_cast<double>(i + 1)) * rounding.unit;
      EXPECT_NEAR(rows[i].columns.at("loss"), loss, bound * loss) << ranks << " ranks, " << rows[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, RankCurves,
                         testing::Values(Rounding{"fp32", 0x1p-24}, Rounding{"bf16", 0x1p-8}),
                         [](const testing::TestParamInfo<Rounding>& info) {
                           return std::string(info.param.precision);
                         });

double mean_of_last(const std::vector<MetricsRow>& rows, std::ptrdiff_t count) {
  double sum = 0;
  for (auto row = rows.end() - count; row != rows.end(); ++row) sum += row->columns.at("loss");
  return sum / static_cast<double>(count);
}

// A gradient is rounded by at most 2^-9 of its value, to either side, before and after ranks add
// it, so the result of learning is the same within 2^-8. The same holds if micro-batches are
// reduced one by one.
TEST(RankGradients, OfTwoBytesOrByMicroBatchTrainAsWell) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TinyTraining training(4, 64);
    const auto train = [&](const std::string& run, const Arguments& more) {
      training.train(
          run, more + Arguments{"--max-steps", kStepCount, "--precision", precision,
                                "--learning-rate", "1e-3", "--warmup-steps", "20", "--local-ranks",
                                "2", "--zero-stage", "2", "--gradient-accumulation-steps", "4"});
      return mean_of_last(training.rows(run), 50);
    };
    const double plain = train("plain", {});
    EXPECT_NEAR(train("narrow", {"--gradient-dtype", "bf16"}), plain, 0x1p-8 * plain);
    EXPECT_NEAR(train("by_micro_batch", {"--gradient-reduction", "micro-batch"}), plain,
                0x1p-8 * plain);
  }
}

}  // namespace
}  // namespace terrace
