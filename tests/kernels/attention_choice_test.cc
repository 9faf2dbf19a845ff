#include "kernels/cuda/attention_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace terrace::test {
namespace {

constexpr AttentionShape kShape = {
    .batch = 6, .sequence = 200, .heads = 8, .key_value_heads = 4, .head_width = 64};
constexpr std::size_t kSquare = 256 * 256 * 2;

TEST(AttentionChoice, IsCudnnUnlessTheEnvironmentSaysOwn) {
  EXPECT_EQ(attention_choice(nullptr), AttentionChoice::kCudnn);
  EXPECT_EQ(attention_choice(""), AttentionChoice::kCudnn);
  EXPECT_EQ(attention_choice("cudnn"), AttentionChoice::kCudnn);
  EXPECT_EQ(attention_choice("own"), AttentionChoice::kOwn);
}

TEST(AttentionChoice, RefusesOtherWordsAndNamesThose) {
  for (const char* value : {"flash", "Own", "cudnn "}) {
    try {
      attention_choice(value);
      ADD_FAILURE() << value;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(value), std::string::npos);
      EXPECT_NE(error.remedy().find("own or cudnn"), std::string::npos);
    }
  }
}

TEST(AttentionPart, IsAsLargeAsItsSquaresMayBe) {
  EXPECT_EQ(attention_part(kShape, 1000 * kSquare), (AttentionPart{6, 4}));
  EXPECT_EQ(attention_part(kShape, 48 * kSquare), (AttentionPart{6, 4}));
  EXPECT_EQ(attention_part(kShape, 47 * kSquare), (AttentionPart{3, 4}));
  EXPECT_EQ(attention_part(kShape, 23 * kSquare), (AttentionPart{2, 4}));
  EXPECT_EQ(attention_part(kShape, 15 * kSquare), (AttentionPart{1, 4}));
  EXPECT_EQ(attention_part(kShape, 7 * kSquare), (AttentionPart{1, 2}));
  EXPECT_EQ(attention_part(kShape, 3 * kSquare), (AttentionPart{1, 1}));
  EXPECT_EQ(attention_part(kShape, 2 * kSquare - 1), std::nullopt);
}

TEST(AttentionPart, BeginsOnBoundaries) {
  const AttentionShape odd = {
      .batch = 1, .sequence = 67, .heads = 2, .key_value_heads = 1, .head_width = 64};
  EXPECT_EQ(attention_part(odd, 1000 * kSquare), std::nullopt);
  AttentionShape four = odd;
  four.batch = 2;
  EXPECT_EQ(attention_part(four, 1000 * kSquare), (AttentionPart{2, 1}));
  EXPECT_EQ(attention_part(four, 2 * 128 * 128 * 2), std::nullopt);
}

TEST(AttentionPart, HasWorkspaceForSquaresAndSums) {
  const std::size_t rows = 2 * 4 * 2 * 256;
  EXPECT_EQ(cudnn_part_bytes(kShape, {2, 4}),
            rows * (256 * 2 + 3 * 64 * 4 + 2 * 4) + (std::size_t{1} << 20));
  AttentionShape own_heads = kShape;
  own_heads.key_value_heads = 8;
  EXPECT_EQ(cudnn_part_bytes(own_heads, {2, 8}),
            rows * (256 * 2 + 64 * 4 + 2 * 4) + (std::size_t{1} << 20));
}

}  // namespace
}  // namespace terrace::test
