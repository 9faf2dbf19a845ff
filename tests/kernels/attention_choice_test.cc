#include "kernels/cuda/attention_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace terrace::test {
namespace {

constexpr AttentionShape kShape = {
    .batch = 6, .queries = 200, .keys = 200, .heads = 8, .key_value_heads = 4, .head_width = 64};
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

// Returns an op with the strides of one matrix of queries, keys and values.
AttentionBackward backward_op() {
  AttentionBackward op;
  op.shape = kShape;
  op.q.dtype = DType::kBF16;
  op.q.stride = (8 + 2 * 4) * 64;
  op.k = op.v = op.dq = op.dk = op.dv = op.q;
  return op;
}
AttentionForward forward_of(const AttentionBackward& op) {
  return {.shape = op.shape,
          .rule = op.rule,
          .q = op.q,
          .k = op.k,
          .v = op.v,
          .out = {},
          .log_sum_exp = {}};
}
void expect_refusal(const AttentionBackward& op, const char* refusal) {
  EXPECT_EQ(cudnn_refusal(op), refusal);
  EXPECT_EQ(cudnn_refusal(forward_of(op)), refusal);
}

TEST(CudnnRefusal, IsNoneOfWhatCudnnDoes) {
  expect_refusal(backward_op(), "");
  AttentionBackward op = backward_op();
  op.rule.window = 128;
  expect_refusal(op, "");
  op.k.stride = op.dv.stride = 4 * 64;  // in separate matrices
  expect_refusal(op, "");
  op.shape.head_width = 128;
  expect_refusal(op, "");
}

TEST(CudnnRefusal, NamesWhatIsForOurOwnKernels) {
  AttentionBackward op = backward_op();
  op.rule.soft_cap = 50.0F;
  expect_refusal(op, "a soft cap on scores");
  op = backward_op();
  std::byte some{};
  op.rule.first_keys = view(&some, DType::kI32, 6, 200);
  expect_refusal(op, "several documents in a sequence");
  op = backward_op();
  op.rule.sinks = view(&some, DType::kBF16, 8);
  expect_refusal(op, "attention sinks");
  op = backward_op();
  op.shape.queries = 1;
  EXPECT_EQ(cudnn_refusal(forward_of(op)), "fewer queries than keys");
  op = backward_op();
  op.shape.head_width = 256;
  expect_refusal(op, "heads of 256 elements");
  op.shape.head_width = 20;
  expect_refusal(op, "heads of 20 elements");
  op = backward_op();
  op.v.stride += 4;
  expect_refusal(op, "rows that are not aligned");
  op = backward_op();
  op.dk.stride += 4;
  EXPECT_EQ(cudnn_refusal(op), "rows that are not aligned");
  op = backward_op();
  op.q.dtype = op.k.dtype = op.v.dtype = DType::kF32;
  expect_refusal(op, "neither bf16 nor fp16");
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
      .batch = 1, .queries = 67, .keys = 67, .heads = 2, .key_value_heads = 1, .head_width = 64};
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
