#include "runtime/train/choose_id.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr int kDraws = 4000;

// Returns how often each id is drawn.
std::map<std::int32_t, int> draws(std::span<const float> logits, const ChoiceRule& rule) {
  std::map<std::int32_t, int> counts;
  for (std::uint64_t i = 0; i < kDraws; ++i) ++counts[choose_id(logits, rule, {kSeed, i})];
  return counts;
}

// Returns logits for the likelihoods 0.4, 0.3, 0.2 and 0.1, in mixed order.
std::array<float, 4> four_logits() {
  return {std::log(0.2F), std::log(0.4F), std::log(0.1F), std::log(0.3F)};
}

TEST(ChooseId, TemperatureZeroTakesTheLikeliest) {
  std::array<float, 300> logits = {};
  logits[65] = 2.0F;
  logits[270] = 9.0F;
  EXPECT_EQ(choose_id(logits, {.temperature = 0}, {1, 0}), 270);
  EXPECT_EQ(choose_id(std::span(logits).first(256), {.temperature = 0}, {1, 0}), 65);
}

TEST(ChooseId, DrawsByLikelihood) {
  std::array<float, 300> logits;
  logits.fill(-1000.0F);
  logits[10] = 0.0F;
  logits[20] = std::log(3.0F);
  auto counts = draws(logits, {});
  EXPECT_EQ(counts[10] + counts[20], kDraws);
  // The expected count is 3/4 of 4000, with a standard deviation of 27. A seed always gives the
  // same draws.
  EXPECT_NEAR(counts[20], 3000, 110);
  EXPECT_EQ(choose_id(logits, {}, {kSeed, 3}), choose_id(logits, {}, {kSeed, 3}));
}

TEST(ChooseId, DrawsFromTheLikeliestAlone) {
  auto counts = draws(four_logits(), {.top_k = 2});
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_EQ(counts[1] + counts[3], kDraws);
  EXPECT_NEAR(counts[1], kDraws * 4 / 7, 130);
  EXPECT_EQ(draws(four_logits(), {.top_k = 1}).size(), 1U);
  EXPECT_EQ(draws(four_logits(), {.top_k = 4}), draws(four_logits(), {}));
  EXPECT_EQ(draws(four_logits(), {.top_k = 9}), draws(four_logits(), {}));
  // Ids that are as likely as the last of the top k are kept too, as in the transformers library.
  const std::array<float, 4> equal = {1.0F, 2.0F, 1.0F, 0.0F};
  EXPECT_EQ(draws(equal, {.top_k = 2}).size(), 3U);
}

// An id is kept if the ids that are likelier have a total likelihood of less than top_p.
TEST(ChooseId, DrawsFromThoseThatMakeUpTopP) {
  EXPECT_EQ(draws(four_logits(), {.top_p = 0.39}).size(), 1U);
  EXPECT_EQ(draws(four_logits(), {.top_p = 0.41}).size(), 2U);
  EXPECT_EQ(draws(four_logits(), {.top_p = 0.69}).size(), 2U);
  auto counts = draws(four_logits(), {.top_p = 0.71});
  EXPECT_EQ(counts.size(), 3U);
  EXPECT_EQ(counts[2], 0);
  EXPECT_NEAR(counts[1], kDraws * 4 / 9, 130);
  EXPECT_EQ(draws(four_logits(), {.top_p = 1e-9}).size(), 1U);
  EXPECT_EQ(draws(four_logits(), {.top_p = 0.95}), draws(four_logits(), {}));
}

// Temperature is applied first: it makes the likelihoods flatter, so that more ids are needed to
// make up top_p. top-k is applied next: it leaves two ids, and the first of them then has a
// likelihood of 4/7.
TEST(ChooseId, TemperatureThenTopKThenTopP) {
  EXPECT_EQ(draws(four_logits(), {.temperature = 100, .top_p = 0.71}).size(), 3U);
  EXPECT_EQ(draws(four_logits(), {.temperature = 100, .top_p = 0.8}).size(), 4U);
  EXPECT_EQ(draws(four_logits(), {.temperature = 0.1, .top_p = 0.9}).size(), 1U);
  EXPECT_EQ(draws(four_logits(), {.top_k = 2, .top_p = 0.56}).size(), 1U);
  EXPECT_EQ(draws(four_logits(), {.top_k = 2, .top_p = 0.58}).size(), 2U);
}

TEST(ChooseId, LogitsThatAreNoNumbersAreRefused) {
  std::array<float, 256> logits = {};
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(choose_id(logits, {}, {1, 0}), NotFinite);
  EXPECT_THROW(choose_id(logits, {.temperature = 0}, {1, 0}), NotFinite);
}

}  // namespace
}  // namespace terrace
