#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <numeric>

#include "kernels/head_chunk.h"
#include "kernels/norm_tree.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/host_tensor.h"

// Checks the forwards of the reference against values worked out by hand: finite differences and
// comparisons with the reference itself would both agree with a wrong forward.
namespace terrace::test {
namespace {

HostTensor tensor(Shape shape, std::initializer_list<double> values) {
  HostTensor result(DType::kF64, shape);
  std::int64_t i = 0;
  for (const double value : values) result.set(i++, value);
  return result;
}

void expect_near(const HostTensor& got, std::initializer_list<double> want, double error = 1e-12) {
  ASSERT_EQ(got.elements(), static_cast<std::int64_t>(want.size()));
  std::int64_t i = 0;
  for (const double value : want) {
    EXPECT_NEAR(got.at(i), value, error) << "element " << i;
    ++i;
  }
}

TEST(ReferenceValues, MatmulMultipliesByTheTransposedWeight) {
  const HostTensor x = tensor(shape(1, 2), {2, 3});
  const HostTensor weight = tensor(shape(3, 2), {1, 0, 0, 1, 1, -1});
  const HostTensor bias = tensor(shape(3), {10, 20, 30});
  const HostTensor y = tensor(shape(1, 3), {0, 0, 0});
  reference_kernels().matmul_forward({}, {x.view(), weight.view(), bias.view(), y.view()});
  expect_near(y, {12, 23, 29});
}

TEST(ReferenceValues, Norms) {
  const HostTensor x = tensor(shape(1, 2), {1, 7});
  const HostTensor weight = tensor(shape(2), {2, 3});
  const HostTensor bias = tensor(shape(2), {1, 1});
  const HostTensor y = tensor(shape(1, 2), {0, 0});
  const HostTensor mean = tensor(shape(1), {0});
  const HostTensor rstd = tensor(shape(1), {0});
  RmsNormForward rms;
  rms.x = whole_rows(x.view());
  rms.weight = weight.view();
  rms.y = whole_rows(y.view());
  rms.rstd = rstd.view();
  rms.epsilon = 0.0F;
  reference_kernels().rms_norm_forward({}, rms);
  expect_near(y, {2.0 / 5, 21.0 / 5});
  expect_near(rstd, {1.0 / 5});
  rms.form = RmsNormForm::kMultiplyByOnePlus;
  reference_kernels().rms_norm_forward({}, rms);
  expect_near(y, {3.0 / 5, 28.0 / 5});
  reference_kernels().layer_norm_forward(
      {}, {x.view(), weight.view(), bias.view(), y.view(), mean.view(), rstd.view(), 0.0F});
  expect_near(y, {-1, 4});
  expect_near(mean, {4});
  expect_near(rstd, {1.0 / 3});
}

TEST(ReferenceValues, RopeTurnsTheHalvesOfAHead) {
  const HostTensor qkv = tensor(shape(2, 4), {1, 2, 3, 4, 1, 2, 3, 4});
  const HostTensor table = tensor(shape(2, 4), {1, 1, 0, 0, 0, -1, 1, 0});  // 0, 0; 90, 180 degrees
  reference_kernels().rope({}, {.heads = columns_of(qkv.view(), 0, 4),
                                .table = table.view(),
                                .sequence = 2,
                                .head_width = 4,
                                .rotary_width = 4});
  expect_near(qkv, {1, 2, 3, 4, -3, -2, 1, -4});
}

TEST(ReferenceValues, RopeTurnsTheFirstElementsByTheRowThatIsNamed) {
  const HostTensor table = tensor(shape(3, 2), {1, 0, 0, 1, 0, 2});  // 0, 90; 90 degrees, doubled
  Rope op;
  op.table = table.view();
  op.head_width = 3;
  op.rotary_width = 2;
  const HostTensor named = tensor(shape(2, 6), {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6});
  HostTensor positions(DType::kI32, shape(2));
  positions.set(0, 2);
  op.heads = columns_of(named.view(), 3, 3);
  op.positions = positions.view();
  reference_kernels().rope({}, op);
  expect_near(named, {1, 2, 3, -10, 8, 6, 1, 2, 3, 4, 5, 6});
  const HostTensor counted = tensor(shape(2, 3), {1, 2, 3, 1, 2, 3});
  op.heads = columns_of(counted.view(), 0, 3);
  op.positions = {};
  op.sequence = 2;
  op.first_position = 1;
  op.inverse = true;
  reference_kernels().rope({}, op);
  expect_near(counted, {2, -1, 3, 4, -2, 3});
}

// Attention of one query head with D = 1 in three rows of q, k, v. The last query is log 3 and
// gives its keys the weights 3^5, 3^7, 3^0; the other queries are 0 and give all keys the same
// weight.
struct ThreeRows {
  HostTensor qkv = tensor(shape(3, 3), {0, 5, 1, 0, 7, 3, std::log(3.0), 0, 8});
  HostTensor out = tensor(shape(3), {0, 0, 0});
  HostTensor log_sum_exp = tensor(shape(1, 1, 3), {0, 0, 0});
  HostTensor workspace = HostTensor(DType::kF64, shape(3));

  void attend(std::int64_t queries, const AttentionRule& rule) {
    KernelContext context;
    context.workspace = {workspace.view().data, workspace.view().size_bytes()};
    StridedRows q = columns_of(qkv.view(), 0, 1);
    q.data += static_cast<std::size_t>((3 - queries) * q.stride) * sizeof(double);
    q.rows = queries;
    TensorView attended = out.view();
    TensorView statistics = log_sum_exp.view();
    attended.shape[0] = statistics.shape[2] = queries;
    reference_kernels().attention_forward(context, {{1, queries, 3, 1, 1, 1},
                                                    rule,
                                                    q,
                                                    columns_of(qkv.view(), 1, 1),
                                                    columns_of(qkv.view(), 2, 1),
                                                    attended,
                                                    statistics});
  }
};

TEST(ReferenceValues, AttentionIsCausal) {
  ThreeRows rows;
  rows.attend(3, {});
  const double sum = 243 + 2187 + 1;
  expect_near(rows.out, {1, 2, (243 * 1 + 2187 * 3 + 8) / sum});
  expect_near(rows.log_sum_exp, {0, std::log(2.0), std::log(sum)});
}

TEST(ReferenceValues, AttentionOfAWindowSeesItsLastKeys) {
  ThreeRows rows;
  rows.attend(3, {.window = 2});
  expect_near(rows.out, {1, 2, (2187 * 3 + 8) / 2188.0});
  rows.attend(3, {.window = 1});
  expect_near(rows.out, {1, 3, 8});
}

TEST(ReferenceValues, AttentionOfADocumentSeesItsOwnKeys) {
  HostTensor first_keys(DType::kI32, shape(1, 3));
  first_keys.set(1, 1);
  first_keys.set(2, 1);
  ThreeRows rows;
  rows.attend(3, {.first_keys = first_keys.view()});
  expect_near(rows.out, {1, 3, (2187 * 3 + 8) / 2188.0});
}

TEST(ReferenceValues, AttentionCapsScoresAfterTheirScale) {
  ThreeRows rows;
  rows.attend(3, {.scale = 0.5F, .soft_cap = 2.0F});
  const double first = std::exp(2 * std::tanh(0.5 * 5 * std::log(3.0) / 2));
  const double second = std::exp(2 * std::tanh(0.5 * 7 * std::log(3.0) / 2));
  expect_near(rows.out, {1, 2, (first * 1 + second * 3 + 8) / (first + second + 1)});
}

TEST(ReferenceValues, TheLastQueriesOfMoreKeysStandAtTheirEnd) {
  ThreeRows rows;
  rows.attend(2, {});
  expect_near(rows.out, {2, (243 * 1 + 2187 * 3 + 8) / 2431.0, 0});
  rows.attend(1, {.window = 2});
  EXPECT_NEAR(rows.out.at(0), (2187 * 3 + 8) / 2188.0, 1e-12);
}

TEST(ReferenceValues, Activations) {
  const HostTensor gate_up = tensor(shape(1, 4), {0, std::log(3.0), 5, 4});
  const HostTensor y = tensor(shape(1, 2), {0, 0});
  reference_kernels().glu_forward({}, {gate_up.view(), y.view()});
  expect_near(y, {0, std::log(3.0) * 0.75 * 4});
  const HostTensor ones = tensor(shape(1, 4), {1, -1, 5, 4});
  reference_kernels().glu_forward({}, {ones.view(), y.view(), GateActivation::kGeluTanh});
  expect_near(y, {0.8411919906 * 5, -0.1588080094 * 4}, 1e-8);  // as published for gelu_new
  const HostTensor x = tensor(shape(3), {0, 1, -1});
  const HostTensor z = tensor(shape(3), {9, 9, 9});
  reference_kernels().gelu_forward({}, {x.view(), z.view()});
  expect_near(z, {0, 0.8411919906, -0.1588080094}, 1e-9);  // as published for gelu_new
}

TEST(ReferenceValues, LossOfAFlatDistributionIsTheLogarithmOfTheVocabulary) {
  const HostTensor h = tensor(shape(3, 1), {0, 0, 1});
  const HostTensor weight = tensor(shape(4, 1), {1, 1, 1, 1});
  HostTensor target(DType::kI32, shape(3));
  target.set(0, 2);
  target.set(1, -1);
  target.set(2, 0);
  HostTensor workspace(DType::kF64, shape(3 + 12));
  double loss_sum = -1;
  HeadLoss op;
  op.h = h.view();
  op.weight = weight.view();
  op.target = target.view();
  op.loss_sum = &loss_sum;
  ASSERT_LE(reference_kernels().head_loss_workspace(op, 1), workspace.view().size_bytes());
  KernelContext context;
  context.workspace = {workspace.view().data, workspace.view().size_bytes()};
  reference_kernels().head_loss(context, op);
  EXPECT_NEAR(loss_sum, 2 * std::log(4.0), 1e-12);
}

TEST(ReferenceValues, LogitsAreScaledAndThenCapped) {
  const HostTensor h = tensor(shape(1, 1), {2});
  const HostTensor weight = tensor(shape(3, 1), {0, 3, -100});
  const HostTensor logits = tensor(shape(1, 3), {9, 9, 9});
  HostTensor workspace(DType::kF64, shape(1 + 3));
  HeadLoss op;
  op.h = h.view();
  op.weight = weight.view();
  op.logits = logits.view();
  op.logit_scale = 0.5F;
  op.soft_cap = 4.0F;
  KernelContext context;
  context.workspace = {workspace.view().data, workspace.view().size_bytes()};
  reference_kernels().head_loss(context, op);
  expect_near(logits, {0, 4 * std::tanh(0.75), -4});
}

TEST(ReferenceValues, EmbeddingAddsThePosition) {
  HostTensor tokens(DType::kI32, shape(4));
  tokens.set(0, 1);
  tokens.set(3, 1);
  const HostTensor wte = tensor(shape(2, 1), {10, 20});
  const HostTensor wpe = tensor(shape(2, 1), {1, 2});
  const HostTensor h = tensor(shape(4, 1), {0, 0, 0, 0});
  reference_kernels().embedding_forward({}, {tokens.view(), wte.view(), wpe.view(), h.view(), 2});
  expect_near(h, {21, 12, 11, 22});
  HostTensor positions(DType::kI32, shape(4));
  positions.set(1, 1);
  positions.set(2, 1);
  reference_kernels().embedding_forward({}, {.tokens = tokens.view(),
                                             .wte = wte.view(),
                                             .wpe = wpe.view(),
                                             .h = h.view(),
                                             .sequence = 2,
                                             .positions = positions.view(),
                                             .scale = 3.0F});
  expect_near(h, {61, 32, 32, 61});
}

TEST(ReferenceValues, ParametersRoundTiesAwayFromZero) {
  HostTensor source(DType::kF32, shape(4));
  HostTensor target(DType::kBF16, shape(4));
  source.set(0, 1 + 0x1.0p-8);  // a tie: even is below, away is above
  source.set(1, -1 - 0x1.0p-8);
  source.set(2, 1 + 0x1.FFp-9);  // just below the tie
  source.set(3, 1 + 0x1.8p-7);   // a tie whose even neighbour is above
  reference_kernels().cast_parameters({}, {source.view(), target.view()});
  expect_near(target, {1 + 0x1.0p-7, -1 - 0x1.0p-7, 1.0, 1 + 0x1.0p-6}, 0.0);
}

TEST(NormTree, LanesAreAddedPairwise) {
  std::vector<float> block(19, 0.0F);
  std::iota(block.begin(), block.end(), 1.0F);
  EXPECT_EQ(block_sum_of_squares(block), 19.0 * 20 * 39 / 6);
  // 2^60 and the 1s of another lane meet only when the halves are added. Until then the sum of the
  // 1s survives: 2^60 + 256 is exact, but 256 additions of 1 to 2^60 would each be lost.
  std::vector<float> lanes(8 * 256, 0.0F);
  for (std::size_t i = 4; i < lanes.size(); i += 8) lanes[i] = 1.0F;
  lanes[0] = 0x1.0p30F;
  EXPECT_EQ(block_sum_of_squares(lanes), 0x1.0p60 + 256);
}

TEST(NormTree, SumsByHalves) {
  EXPECT_EQ(tree_sum({}), 0.0);
  const std::vector<double> values = {0x1.0p53, 1.0, 1.0, 1.0, -0x1.0p53};
  // (2^53 + 1) + (1 + (1 - 2^53)): the first sum rounds to 2^53.
  EXPECT_EQ(tree_sum(values), 2.0);
}

TEST(HeadChunk, IsFixedByTheVocabulary) {
  EXPECT_EQ(head_chunk_rows(1), 4096);
  EXPECT_EQ(head_chunk_rows(8192), 4096);
  EXPECT_EQ(head_chunk_rows(8193), 2048);
  EXPECT_EQ(head_chunk_rows(50257), 512);
  EXPECT_EQ(head_chunk_rows(128256), 256);
  EXPECT_EQ(head_chunk_rows(1 << 20), 64);
}

}  // namespace
}  // namespace terrace::test
