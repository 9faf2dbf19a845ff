#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/kernels/op_case.h"

// A suite that passes proves that an option works only if it would fail without the option. Every
// table here ignores one option of one op, or does something else in its place, and some case has
// to notice.
namespace terrace::test {
namespace {

// Cases with very wide or very many rows take long, and show no option better.
constexpr std::string_view kLarge[] = {"R=2200", "R=4133", "R=750",   "C=3000",
                                       "C=5000", "C=8200", "C=16400", "C=32768"};

bool is_large(const OpCase& op_case) {
  return std::ranges::any_of(
      kLarge, [&](std::string_view name) { return op_case.name.find(name) != op_case.name.npos; });
}

// Returns whether one of the cases whose names begin with `name` fails.
bool is_noticed(const std::vector<OpCase>& cases, const KernelTable& table, std::string_view name) {
  using Reporter = testing::ScopedFakeTestPartResultReporter;
  for (const OpCase& op_case : cases) {
    if (!op_case.name.starts_with(name) || is_large(op_case)) continue;
    testing::TestPartResultArray results;
    {
      const Reporter reporter(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      expect_conforms(table, op_case);
    }
    for (int i = 0; i < results.size(); ++i) {
      if (results.GetTestPartResult(i).failed()) return true;
    }
  }
  return false;
}

// Calls the CPU's op without the option that `Forget` removes.
template <typename Op, void (*KernelTable::*Run)(const KernelContext&, const Op&), auto Forget>
void call_without(const KernelContext& context, const Op& op) {
  Op changed = op;
  Forget(changed);
  (cpu_kernels().*Run)(context, changed);
}

template <typename Op, void (*KernelTable::*Run)(const KernelContext&, const Op&), auto Forget>
KernelTable without() {
  KernelTable table = cpu_kernels();
  table.*Run = call_without<Op, Run, Forget>;
  return table;
}

// Gives a dropout another list of samples, which stays as it is until the next call.
template <typename Change>
void change_samples(Dropout& op, const Change& change) {
  static std::vector<std::int32_t> changed;
  const auto rows = static_cast<std::size_t>(op.samples.elements());
  const std::span samples(op.samples.as<std::int32_t>(), rows);
  changed.assign(samples.begin(), samples.end());
  for (std::int32_t& sample : changed) sample = change(sample);
  op.samples.data = reinterpret_cast<std::byte*>(changed.data());
}

class IgnoredOptions : public testing::TestWithParam<DType> {
 protected:
  static void expect_noticed(const std::vector<OpCase>& cases, const KernelTable& table,
                             std::string_view name, const char* what) {
    EXPECT_TRUE(is_noticed(cases, table, name)) << name << " without " << what;
  }
};

TEST_P(IgnoredOptions, OfNorms) {
  using T = KernelTable;
  using enum RmsNormForm;
  const std::vector<OpCase> cases = rms_norm_cases(GetParam());
  const auto forward = [&](const KernelTable& table, const char* what) {
    expect_noticed(cases, table, "rms_norm_forward", what);
  };
  const auto backward = [&](const KernelTable& table, const char* what) {
    expect_noticed(cases, table, "rms_norm_backward", what);
  };
  using Forward = RmsNormForward;
  using Backward = RmsNormBackward;
  forward(without<Forward, &T::rms_norm_forward,
                  [](Forward& op) {
                    if (op.form == kMultiplyByOnePlus) op.form = kMultiplyThenRound;
                  }>(),
          "1 +");
  forward(without<Forward, &T::rms_norm_forward, [](Forward& op) { op.squares = {}; }>(),
          "squares");
  forward(
      without<Forward, &T::rms_norm_forward, [](Forward& op) { op.total_width = op.x.width; }>(),
      "the whole width");
  forward(without<RowSquares, &T::row_squares, [](RowSquares& op) { op.x.width /= 2; }>(),
          "half of the columns");
  backward(without<Backward, &T::rms_norm_backward,
                   [](Backward& op) {
                     if (op.form == kMultiplyByOnePlus) op.form = kMultiplyThenRound;
                   }>(),
           "1 +");
  backward(without<Backward, &T::rms_norm_backward, [](Backward& op) { op.along = {}; }>(),
           "sums along");
  backward(
      without<Backward, &T::rms_norm_backward, [](Backward& op) { op.total_width = op.x.width; }>(),
      "the whole width");
  backward(
      without<NormAlong, &T::norm_along, [](NormAlong& op) { op.form = kRoundThenMultiply; }>(),
      "the form of sums along");
}

// In fp32 nothing is rounded between the products.
TEST_P(IgnoredOptions, OfNormsThatRound) {
  if (GetParam() == DType::kF32) return;
  using T = KernelTable;
  using enum RmsNormForm;
  using Forward = RmsNormForward;
  using Backward = RmsNormBackward;
  const std::vector<OpCase> cases = rms_norm_cases(GetParam());
  expect_noticed(cases,
                 without<Forward, &T::rms_norm_forward,
                         [](Forward& op) {
                           if (op.form == kMultiplyThenRound) op.form = kRoundThenMultiply;
                         }>(),
                 "rms_norm_forward", "one rounding");
  expect_noticed(cases,
                 without<Forward, &T::rms_norm_forward,
                         [](Forward& op) {
                           if (op.form == kRoundThenMultiply) op.form = kMultiplyThenRound;
                         }>(),
                 "rms_norm_forward", "two roundings");
  expect_noticed(cases,
                 without<Backward, &T::rms_norm_backward,
                         [](Backward& op) {
                           if (op.form == kMultiplyThenRound) op.form = kRoundThenMultiply;
                         }>(),
                 "rms_norm_backward", "one rounding");
  expect_noticed(cases,
                 without<Backward, &T::rms_norm_backward,
                         [](Backward& op) {
                           if (op.form == kRoundThenMultiply) op.form = kMultiplyThenRound;
                         }>(),
                 "rms_norm_backward", "two roundings");
}

TEST_P(IgnoredOptions, OfElementwiseOps) {
  using T = KernelTable;
  const std::vector<OpCase> activations = activation_cases(GetParam());
  expect_noticed(activations,
                 without<GluForward, &T::glu_forward,
                         [](GluForward& op) { op.activation = GateActivation::kSilu; }>(),
                 "glu_forward", "GELU");
  expect_noticed(activations,
                 without<GluBackward, &T::glu_backward,
                         [](GluBackward& op) { op.activation = GateActivation::kSilu; }>(),
                 "glu_backward", "GELU");
  expect_noticed(activations,
                 without<GluForward, &T::glu_forward,
                         [](GluForward& op) {
                           if (op.activation == GateActivation::kClampedGate) {
                             op.activation = GateActivation::kGeluTanh;
                           }
                         }>(),
                 "glu_forward", "the clamped gate");
  const std::vector<OpCase> cases = elementwise_cases(GetParam());
  expect_noticed(cases, without<Add, &T::add, [](Add& op) { op.b_scale = 1; }>(), "add",
                 "the scale");
  expect_noticed(cases, without<Scale, &T::scale, [](Scale& op) { op.factor = 1; }>(), "scale",
                 "the factor");
  const auto rows = [&](const KernelTable& table, const char* what) {
    expect_noticed(cases, table, "scale_rows", what);
  };
  rows(without<ScaleRows, &T::scale_rows, [](ScaleRows& op) { op.factor = 1; }>(), "the factor");
  rows(without<ScaleRows, &T::scale_rows, [](ScaleRows& op) { op.adds = false; }>(), "the sum");
  rows(without<ScaleRows, &T::scale_rows, [](ScaleRows& op) { op.x.stride = op.x.width; }>(),
       "the stride of x");
  rows(without<ScaleRows, &T::scale_rows, [](ScaleRows& op) { op.y.stride = op.y.width; }>(),
       "the stride of y");
  const auto dropout = [&](const KernelTable& table, const char* what) {
    expect_noticed(cases, table, "dropout", what);
  };
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.seed &= ~std::uint32_t{0}; }>(),
          "the upper half of the seed");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.seed &= ~std::uint64_t{0} << 32U; }>(),
          "the lower half of the seed");
  dropout(without<Dropout, &T::dropout,
                  [](Dropout& op) { change_samples(op, [](auto s) { return std::min(s, 4); }); }>(),
          "the numbers of the samples");
  dropout(without<Dropout, &T::dropout,
                  [](Dropout& op) { change_samples(op, [](auto s) { return std::max(s, 0); }); }>(),
          "rows that are copied");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.stream = 0; }>(), "the stream");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.first_column = 0; }>(),
          "the first column");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.positions = 1; }>(), "the positions");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.threshold = 0; }>(), "the threshold");
  dropout(without<Dropout, &T::dropout, [](Dropout& op) { op.factor = 1; }>(), "the factor");
  const auto columns = [&](const KernelTable& table, const char* what) {
    expect_noticed(cases, table, "scale_columns", what);
  };
  columns(without<ScaleColumns, &T::scale_columns, [](ScaleColumns& op) { op.times = {}; }>(),
          "what it is multiplied with");
  columns(without<ScaleColumns, &T::scale_columns, [](ScaleColumns& op) { op.bias = {}; }>(),
          "the bias");
  expect_noticed(cases,
                 without<Dequantize, &T::dequantize, [](Dequantize& op) { op.shape.rank = 0; }>(),
                 "dequantize", "the part of the matrix");
}

// The cases with positions have no sequence.
template <typename Op>
void forget_positions(Op& op) {
  if (!op.positions.empty()) op.sequence = 1;
  op.positions = {};
}

TEST_P(IgnoredOptions, OfEmbeddings) {
  using T = KernelTable;
  using Forward = EmbeddingForward;
  using Backward = EmbeddingBackward;
  const std::vector<OpCase> cases = embedding_cases(GetParam());
  const auto expect = [&](const KernelTable& table, std::string_view name, const char* what) {
    expect_noticed(cases, table, name, what);
  };
  expect(without<Forward, &T::embedding_forward, [](Forward& op) { op.scale = 1; }>(),
         "embedding_forward", "the scale");
  expect(without<Forward, &T::embedding_forward, forget_positions<Forward>>(), "embedding_forward",
         "positions");
  expect(without<AddPositions, &T::add_positions, forget_positions<AddPositions>>(),
         "add_positions", "positions");
  expect(without<Backward, &T::embedding_backward, [](Backward& op) { op.scale = 1; }>(),
         "embedding_backward", "the scale");
  expect(without<Backward, &T::embedding_backward, forget_positions<Backward>>(),
         "embedding_backward", "positions");
  expect(without<Backward, &T::embedding_backward, [](Backward& op) { op.padding_token = -1; }>(),
         "embedding_backward", "the padding token");
}

TEST_P(IgnoredOptions, OfHeads) {
  using T = KernelTable;
  const auto expect_both = [](const std::vector<OpCase>& cases, const KernelTable& no_scale,
                              const KernelTable& no_cap, std::string_view name) {
    expect_noticed(cases, no_scale, name, "the scale");
    expect_noticed(cases, no_cap, name, "the cap");
  };
  expect_both(head_loss_cases(GetParam()),
              without<HeadLoss, &T::head_loss, [](HeadLoss& op) { op.logit_scale = 1; }>(),
              without<HeadLoss, &T::head_loss, [](HeadLoss& op) { op.soft_cap = 0; }>(),
              "head_loss");
  const std::vector<OpCase> cases = head_part_cases(GetParam());
  expect_both(cases, without<HeadSums, &T::head_sums, [](HeadSums& op) { op.logit_scale = 1; }>(),
              without<HeadSums, &T::head_sums, [](HeadSums& op) { op.soft_cap = 0; }>(),
              "head_sums");
  expect_both(
      cases,
      without<HeadPartLoss, &T::head_part_loss, [](HeadPartLoss& op) { op.logit_scale = 1; }>(),
      without<HeadPartLoss, &T::head_part_loss, [](HeadPartLoss& op) { op.soft_cap = 0; }>(),
      "head_part_loss");
}

TEST_P(IgnoredOptions, OfExperts) {
  using T = KernelTable;
  using Choose = ChooseExperts;
  using Backward = ChooseExpertsBackward;
  const std::vector<OpCase> cases = expert_cases(GetParam());
  const auto expect = [&](const KernelTable& table, std::string_view name, const char* what) {
    expect_noticed(cases, table, name, what);
  };
  expect(without<Choose, &T::choose_experts, [](Choose& op) { op.rule.normalizes = false; }>(),
         "choose_experts R", "normalised weights");
  expect(without<Choose, &T::choose_experts, [](Choose& op) { op.rule.normalizes = true; }>(),
         "choose_experts R", "the probabilities of all experts");
  expect(without<Backward, &T::choose_experts_backward,
                 [](Backward& op) { op.rule.normalizes = false; }>(),
         "choose_experts_backward", "normalised weights");
  constexpr std::string_view kLosses = "choose_experts_backward losses";
  expect(without<Backward, &T::choose_experts_backward, [](Backward& op) { op.slopes = {}; }>(),
         kLosses, "slopes");
  expect(without<Backward, &T::choose_experts_backward, [](Backward& op) { op.targets = {}; }>(),
         kLosses, "targets");
  expect(without<RouterSums, &T::router_sums, [](RouterSums& op) { op.targets = {}; }>(),
         "router_sums", "targets");
  using Slopes = RouterSlopes;
  expect(without<Slopes, &T::router_slopes, [](Slopes& op) { op.balance = 0; }>(), "router_slopes",
         "the balance loss");
  expect(without<Slopes, &T::router_slopes, [](Slopes& op) { op.z = 0; }>(), "router_slopes",
         "the z-loss");
  expect(without<Slopes, &T::router_slopes, [](Slopes& op) { op.layers = 1; }>(), "router_slopes",
         "the number of layers");
  for (const auto& [table, what] : {
           std::pair{without<Choose, &T::choose_experts, [](Choose& op) { op.bias = {}; }>(),
                     "the bias"},
           std::pair{without<Choose, &T::choose_experts,
                             [](Choose& op) {
                               const std::int64_t R = op.logits.shape[0];
                               if (!op.bias.empty()) op.bias.shape = {1, op.logits.elements() / R};
                             }>(),
                     "all addends of the bias except the first"},
           std::pair{without<Choose, &T::choose_experts, [](Choose& op) { op.rule.groups = 1; }>(),
                     "groups"},
           std::pair{without<Choose, &T::choose_experts,
                             [](Choose& op) { op.rule.scores = ExpertScores::kSoftmax; }>(),
                     "sigmoids"},
           std::pair{without<Choose, &T::choose_experts, [](Choose& op) { op.rule.scale = 1; }>(),
                     "the scale"},
       }) {
    expect(table, "choose_experts R", what);
  }
  expect(without<Backward, &T::choose_experts_backward,
                 [](Backward& op) { op.rule.scores = ExpertScores::kSoftmax; }>(),
         "choose_experts_backward", "sigmoids");
  expect(without<Backward, &T::choose_experts_backward, [](Backward& op) { op.rule.scale = 1; }>(),
         "choose_experts_backward", "the scale");
  expect(without<SumExpertRows, &T::sum_expert_rows, [](SumExpertRows& op) { op.weight = {}; }>(),
         "sum_expert_rows", "weights");
  expect(without<ExpertBackwardWeight, &T::expert_backward_weight,
                 [](ExpertBackwardWeight& op) { op.dweights.stride = op.dweights.width; }>(),
         "expert_backward_weight", "the distance of the experts");
  using BiasGradient = ExpertBiasGradient;
  expect(
      without<BiasGradient, &T::expert_bias_gradient, [](BiasGradient& op) { op.weight = {}; }>(),
      "expert_bias_gradient", "weights");
  expect(without<AddExpertBias, &T::add_expert_bias,
                 [](AddExpertBias& op) { op.biases.stride = op.biases.width; }>(),
         "add_expert_bias", "the distance of the biases");
  expect(without<AddBiasShare, &T::add_bias_share,
                 [](AddBiasShare& op) { op.biases.stride = op.biases.width; }>(),
         "add_bias_share", "the distance of the biases");
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, IgnoredOptions, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
