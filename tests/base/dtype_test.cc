#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string_view>

#include "base/half.h"

namespace terrace {
namespace {

TEST(DTypeTest, SizesAreThoseOfTheTypes) {
  EXPECT_EQ(size_of(DType::kF32), sizeof(float));
  EXPECT_EQ(size_of(DType::kBF16), sizeof(Bf16));
  EXPECT_EQ(size_of(DType::kF16), sizeof(Fp16));
  EXPECT_EQ(size_of(DType::kF64), sizeof(double));
  EXPECT_EQ(size_of(DType::kI32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::kI16), sizeof(std::int16_t));
  EXPECT_EQ(size_of(DType::kU8), 1U);
}

TEST(DTypeTest, NamesDiffer) {
  std::set<std::string_view> names;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                            DType::kI16, DType::kU8}) {
    EXPECT_FALSE(name_of(dtype).empty());
    names.insert(name_of(dtype));
  }
  EXPECT_EQ(names.size(), 7U);
}

}  // namespace
}  // namespace terrace
