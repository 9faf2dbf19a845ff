#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model/rope_table.h"

namespace terrace {
namespace {

TEST(RopeTable, Llama3FrequenciesMatchPublishedFormula) {
  RopeOptions options;
  options.type = RopeType::kLlama3;
  options.theta = 5e5;
  options.factor = 8.0;
  const std::vector<double> frequencies = rope_frequencies(options, 128);
  ASSERT_EQ(frequencies.size(), 64U);
  const std::vector<std::pair<std::size_t, double>> golden = {{0, 1.0},
                                                              {1, 8.146172339e-01},
                                                              {28, 3.211445995e-03},
                                                              {29, 2.166570764e-03},
                                                              {30, 1.371893568e-03},
                                                              {31, 8.567514129e-04},
                                                              {32, 5.248461610e-04},
                                                              {33, 3.126937504e-04},
                                                              {34, 1.785078128e-04},
                                                              {35, 9.556212354e-05},
                                                              {63, 3.068925989e-07}};
  for (const auto& [i, value] : golden) EXPECT_NEAR(frequencies[i] / value, 1.0, 1e-9) << i;
}

TEST(RopeTable, LinearDividesByTheFactor) {
  RopeOptions options;
  const std::vector<double> plain = rope_frequencies(options, 8);
  EXPECT_NEAR(plain[1], 0.1, 1e-15);
  EXPECT_NEAR(plain[3], 0.001, 1e-15);
  options.type = RopeType::kLinear;
  options.factor = 4.0;
  EXPECT_NEAR(rope_frequencies(options, 8)[1], 0.025, 1e-15);
}

TEST(RopeTable, RowsHoldCosinesThenSines) {
  const RopeOptions options;
  std::vector<float> table(5 * 4);
  fill_rope_table(options, 5, 4, table);
  for (int t = 0; t < 5; ++t) {
    const float* row = table.data() + 4 * t;
    EXPECT_FLOAT_EQ(row[0], std::cos(static_cast<float>(t)));
    EXPECT_FLOAT_EQ(row[1], std::cos(0.01F * static_cast<float>(t)));
    EXPECT_FLOAT_EQ(row[2], std::sin(static_cast<float>(t)));
    EXPECT_FLOAT_EQ(row[3], std::sin(0.01F * static_cast<float>(t)));
  }
}

}  // namespace
}  // namespace terrace
