#include "memory/tensor.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

#include "memory/tier.h"

namespace terrace {
namespace {

TEST(TensorViewTest, CountsElementsAndBytes) {
  std::vector<std::byte> bytes(2 * 3 * 4 * 2);
  const TensorView tensor = view(bytes.data(), DType::kBF16, 2, 3, 4);
  EXPECT_EQ(tensor.elements(), 24);
  EXPECT_EQ(tensor.size_bytes(), bytes.size());
  EXPECT_FALSE(tensor.empty());
  EXPECT_TRUE(TensorView{}.empty());
  EXPECT_EQ(TensorView{}.elements(), 0);
}

TEST(TensorViewTest, ViewsATypedSpan) {
  std::vector<float> values = {1, 2, 3};
  const TensorView tensor = view(std::span(values));
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_EQ(tensor.shape, (std::array<std::int64_t, 4>{3, 1, 1, 1}));
  tensor.as<float>()[1] = 7;
  EXPECT_EQ(values[1], 7);
  EXPECT_EQ(tensor.as<const float>()[2], 3);
}

TEST(StridedRowsTest, AreColumnsOfAMatrix) {
  std::vector<float> values(3 * 8);
  const TensorView matrix = view(reinterpret_cast<std::byte*>(values.data()), DType::kF32, 3, 8);
  const StridedRows rows = columns_of(matrix, 2, 4);
  EXPECT_EQ(rows.rows, 3);
  EXPECT_EQ(rows.width, 4);
  EXPECT_EQ(rows.stride, 8);
  EXPECT_EQ(rows.data, matrix.data + 2 * sizeof(float));
  EXPECT_TRUE(columns_of(view(nullptr, DType::kF32, 3, 8), 2, 4).empty());
  EXPECT_DEATH(columns_of(matrix, 5, 4), "broken invariant");
}

TEST(TensorViewDeathTest, WrongTypeIsABrokenInvariant) {
  std::vector<float> values(1);
  EXPECT_DEATH(view(std::span(values)).as<double>(), "broken invariant");
}

TEST(TierTest, NamesDiffer) {
  std::set<std::string_view> names;
  for (const Tier tier : kTiers) names.insert(name_of(tier));
  EXPECT_EQ(names.size(), kTierCount);
  EXPECT_EQ(name_of(Account::kParameters), "parameters");
  EXPECT_EQ(name_of(Account::kWorkspace), "workspace");
}

}  // namespace
}  // namespace terrace
