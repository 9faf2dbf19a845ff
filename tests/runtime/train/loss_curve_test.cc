#include "runtime/train/loss_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

namespace terrace {
namespace {

std::string curve_of(const std::vector<double>& losses) {
  LossCurve curve;
  for (const double loss : losses) curve.add(loss);
  return curve.text();
}

// Returns bars of these heights, from 1 to 8.
std::string bars(const std::string& heights) {
  std::string text;
  for (const char height : heights) {
    text += {'\xe2', '\x96', static_cast<char>('\x80' + (height - '0'))};
  }
  return text;
}

std::size_t bars_in(const std::string& text) { return text.size() / 3; }

TEST(LossCurve, DrawsTheHighestLossHighest) {
  EXPECT_EQ(curve_of({8, 7, 6, 5, 4, 3, 2, 1}), bars("87654321"));
  EXPECT_EQ(curve_of({2, 9, 2}), bars("181"));
  EXPECT_EQ(curve_of({3, 3}), bars("11"));
  EXPECT_EQ(curve_of({3}), "");
  EXPECT_EQ(curve_of({}), "");
}

TEST(LossCurve, HasAtMostFortyBarsForAnyLength) {
  for (const int steps : {40, 41, 80, 81, 1000, 12345}) {
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) losses.push_back(std::exp(-5.0 * step / steps));
    const std::string text = curve_of(losses);
    EXPECT_LE(bars_in(text), 40U) << steps;
    EXPECT_GE(bars_in(text), 20U) << steps;
    EXPECT_TRUE(text.starts_with(bars("8"))) << text;
    EXPECT_TRUE(text.ends_with(bars("1"))) << text;
  }
}

// Each bar is the mean of its steps: losses that go up and down alike give a flat curve.
TEST(LossCurve, TakesMeansOfSeveralSteps) {
  std::vector<double> losses;
  for (int step = 0; step < 160; ++step) losses.push_back(step % 2 == 0 ? 1 : 3);
  EXPECT_EQ(curve_of(losses), bars(std::string(40, '1')));
}

TEST(LossCurve, NeedsAUtf8Locale) {
  const char* const before = std::getenv("LC_ALL");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("LC_ALL", "de_DE.UTF-8", 1);
  EXPECT_TRUE(has_utf8_locale());
  ::setenv("LC_ALL", "C.utf8", 1);
  EXPECT_TRUE(has_utf8_locale());
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(has_utf8_locale());
  if (before == nullptr) {
    ::unsetenv("LC_ALL");
  } else {
    ::setenv("LC_ALL", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace terrace
