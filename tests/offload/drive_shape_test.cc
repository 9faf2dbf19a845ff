#include "offload/drive_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace terrace {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t kMuch = kTiB;

TEST(BestShape, TheFastestByMoreThanATwentieth) {
  const std::vector<TriedShape> tried = {
      {{kMiB, 32}, 1.8}, {{256 * kKiB, 16}, 2.0}, {{4 * kMiB, 8}, 1.5}};
  EXPECT_EQ(best_shape(tried).shape, (DriveShape{256 * kKiB, 16}));
  EXPECT_EQ(best_shape(tried).gb_per_s, 2.0);
}

TEST(BestShape, OfThoseAsFastTheOneWithMostInFlightAndThenTheLargestBlocks) {
  const std::vector<TriedShape> tried = {{{256 * kKiB, 16}, 2.0},
                                         {{256 * kKiB, 64}, 1.92},
                                         {{kMiB, 16}, 1.91},
                                         {{kMiB, 8}, 1.99},
                                         {{kMiB, 32}, 1.88}};
  EXPECT_EQ(best_shape(tried).shape, (DriveShape{kMiB, 16}));
}

TEST(StripeShares, AreBySpeed) {
  const std::vector<StripeRoom> stripes = {{7.0, kMuch}, {3.5, kMuch}, {1.0, kMuch}};
  EXPECT_THAT(stripe_shares(stripes, kGiB), ElementsAre(16, 8, 2));
}

TEST(StripeShares, ASlowDirectoryHasSomething) {
  const std::vector<StripeRoom> stripes = {{10.0, kMuch}, {0.1, kMuch}};
  EXPECT_THAT(stripe_shares(stripes, kGiB), ElementsAre(16, 1));
}

TEST(StripeShares, WhatDriftsIsTheSame) {
  const std::vector<StripeRoom> stripes = {{2.0, kMuch}, {1.7, kMuch}};
  EXPECT_THAT(stripe_shares(stripes, kGiB), ElementsAre(16, 16));
}

TEST(StripeShares, AreAlikeWhereASpeedIsNotKnown) {
  const std::vector<StripeRoom> stripes = {{2.0, kMuch}, {0, kMuch}, {1.0, kMuch}};
  EXPECT_THAT(stripe_shares(stripes, kGiB), ElementsAre(1, 1, 1));
}

TEST(StripeShares, AreAlikeWhereAPartWouldNotFit) {
  // Two thirds of 300 MiB do not fit into the first stripe.
  const std::vector<StripeRoom> tight = {{2.0, 190 * kMiB}, {1.0, kMuch}};
  EXPECT_THAT(stripe_shares(tight, 300 * kMiB), ElementsAre(1, 1));
  const std::vector<StripeRoom> enough = {{2.0, 201 * kMiB}, {1.0, kMuch}};
  EXPECT_THAT(stripe_shares(enough, 300 * kMiB), ElementsAre(16, 8));
}

}  // namespace
}  // namespace terrace
