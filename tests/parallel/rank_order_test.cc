#include "parallel/rank_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/half.h"
#include "parallel/communicator.h"

namespace terrace {
namespace {

template <typename T>
T reduce_one(const std::vector<T>& of_ranks, ReduceOp op) {
  std::vector<const std::byte*> sources;
  for (const T& value : of_ranks) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  T result;
  auto* target = reinterpret_cast<std::byte*>(&result);
  reduce_in_rank_order({&target, 1}, sources, 1, DTypeOf<T>::value, op);
  return result;
}

TEST(RankOrderTest, AddsInRankOrder) {
  // (1e8 + 1) + -1e8 loses the 1; any other order keeps it, or loses it elsewhere.
  EXPECT_EQ(reduce_one<float>({1e8F, 1.0F, -1e8F}, ReduceOp::kSum), 0.0F);
  EXPECT_EQ(reduce_one<float>({1e8F, -1e8F, 1.0F}, ReduceOp::kSum), 1.0F);
}

// Reduces host by host: `of_hosts` has the values of each host's ranks.
template <typename T>
T reduce_by_hosts(const std::vector<std::vector<T>>& of_hosts, ReduceOp op) {
  std::vector<double> sum(1);  // has room for a sum of any type
  auto* between = reinterpret_cast<std::byte*>(sum.data());
  T result{};
  for (std::size_t host = 0; host < of_hosts.size(); ++host) {
    std::vector<const std::byte*> sources;
    for (const T& value : of_hosts[host]) {
      sources.push_back(reinterpret_cast<const std::byte*>(&value));
    }
    const bool is_last = host + 1 == of_hosts.size();
    reduce_on_host({.target = is_last ? reinterpret_cast<std::byte*>(&result) : between,
                    .is_last = is_last,
                    .before = host == 0 ? nullptr : between,
                    .sources = sources},
                   1, DTypeOf<T>::value, op);
  }
  return result;
}

TEST(RankOrderTest, HostAfterHostHasTheBitsOfAllAtOnce) {
  EXPECT_EQ(reduce_by_hosts<float>({{1e8F, 1.0F}, {-1e8F}}, ReduceOp::kSum), 0.0F);
  EXPECT_EQ(reduce_by_hosts<float>({{1e8F}, {-1e8F, 1.0F}}, ReduceOp::kSum), 1.0F);
  EXPECT_EQ(reduce_by_hosts<double>({{1.0}, {0x1p-53, 0x1p-53}}, ReduceOp::kSum),
            reduce_one<double>({1.0, 0x1p-53, 0x1p-53}, ReduceOp::kSum));
  EXPECT_EQ(reduce_by_hosts<std::int32_t>({{std::numeric_limits<std::int32_t>::max()}, {1}},
                                          ReduceOp::kSum),
            std::numeric_limits<std::int32_t>::min());
  // Rounded to 16 bits between hosts, the small terms would be lost.
  EXPECT_EQ(reduce_by_hosts<Bf16>({{{0x3f80}, {0x3b80}}, {{0x3b80}}}, ReduceOp::kSum).bits, 0x3f81);
  EXPECT_EQ(reduce_by_hosts<Fp16>({{{0x3c00}}, {{0x1000}}, {{0x1000}}}, ReduceOp::kSum).bits,
            0x3c01);
  EXPECT_TRUE(std::isnan(
      reduce_by_hosts<float>({{std::numeric_limits<float>::quiet_NaN()}, {1.0F}}, ReduceOp::kMax)));
  EXPECT_EQ(reduce_by_hosts<float>({{2.0F}, {3.0F, 1.0F}}, ReduceOp::kMax), 3.0F);
}

TEST(RankOrderTest, NarrowSumsAreRoundedOnce) {
  // 1 + 2^-8 + 2^-8: rounding each sum to bf16 would give 1.
  const std::vector<Bf16> brain = {{0x3f80}, {0x3b80}, {0x3b80}};
  EXPECT_EQ(reduce_one(brain, ReduceOp::kSum).bits, 0x3f81);
  // 1 + 2^-8 is a tie in bf16, which rounds to even.
  EXPECT_EQ(reduce_one<Bf16>({{0x3f80}, {0x3b80}}, ReduceOp::kSum).bits, 0x3f80);
  // 1 + 2^-11 + 2^-11 in fp16.
  const std::vector<Fp16> half = {{0x3c00}, {0x1000}, {0x1000}};
  EXPECT_EQ(reduce_one(half, ReduceOp::kSum).bits, 0x3c01);
}

// Adds to every bf16 a value that makes some of the sums ties, and compares with the scalar code.
TEST(RankOrderTest, EveryBf16IsRoundedAsItsScalarCodeRounds) {
  constexpr std::size_t kCount = 65536 + 7;  // and a tail that fills no vector
  for (const int bits : {0x0000, 0x3b80, 0xbf81, 0x7f80, 0x7fc1}) {
    const Bf16 other{static_cast<std::uint16_t>(bits)};
    std::vector<Bf16> all(kCount);
    for (std::size_t i = 0; i < kCount; ++i) all[i].bits = static_cast<std::uint16_t>(i);
    const std::vector<Bf16> others(kCount, other);
    std::vector<Bf16> result(kCount);
    const auto* first = reinterpret_cast<const std::byte*>(all.data());
    const auto* second = reinterpret_cast<const std::byte*>(others.data());
    auto* target = reinterpret_cast<std::byte*>(result.data());
    reduce_in_rank_order({&target, 1}, std::vector{first, second}, kCount, DType::kBF16,
                         ReduceOp::kSum);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float sum = to_float(all[i]) + to_float(others[i]);
      // The sum of two NaNs may be either of them: compilers and processors choose.
      if (std::isnan(to_float(all[i])) && std::isnan(to_float(other))) {
        ASSERT_TRUE(std::isnan(to_float(result[i]))) << i;
        continue;
      }
      ASSERT_EQ(result[i].bits, to_bf16_nearest_even(sum).bits) << i << " + " << bits;
    }
  }
}

TEST(RankOrderTest, FirstRankIsNotAddedToZero) {
  EXPECT_TRUE(std::signbit(reduce_one<float>({-0.0F, -0.0F}, ReduceOp::kSum)));
}

TEST(RankOrderTest, IntegersWrapAndCompareSigned) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce_one<std::int32_t>({kMost, 1}, ReduceOp::kSum),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(reduce_one<std::int32_t>({-5, 3, -1}, ReduceOp::kMax), 3);
}

// The parts of an all_reduce cover the data once, whatever the sizes.
TEST(AllReducePartTest, PartsCoverTheDataInOrder) {
  for (const std::size_t elements : {0UL, 1UL, 63UL, 64UL, 65UL, 1000UL, 4096UL, 100003UL}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::size_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ElementRange part = all_reduce_part(elements, rank, ranks);
        EXPECT_EQ(part.begin, next);
        next += part.count;
      }
      EXPECT_EQ(next, elements);
    }
  }
}

}  // namespace
}  // namespace terrace
