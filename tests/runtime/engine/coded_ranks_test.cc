#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model/adapter_targets.h"
#include "tests/runtime/engine/ranks_fixture.h"
#include "tests/runtime/engine/resumed_ranks.h"

// Data-parallel ranks, as threads, that send each other codes of gradients and of parameters. Codes
// change what is computed. Where states live, and which of them ZeRO divides, still changes
// nothing.
namespace terrace {
namespace {

constexpr WireForms kInt8{.gradients = WireForm::kInt8};
constexpr WireForms kInt8Errors{.gradients = WireForm::kInt8, .keeps_errors = true};
constexpr WireForms kInt4Errors{.gradients = WireForm::kInt4, .keeps_errors = true};
constexpr WireForms kBoth{
    .gradients = WireForm::kInt4, .parameters = WireForm::kInt8, .keeps_errors = true};
constexpr WireForms kParameters{.parameters = WireForm::kInt8};

ModelRuntimeOptions coded_options(DType type, const WireForms& wire,
                                  std::string_view family = "llama") {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, true, false), type);
  options.placement.micro_batches = 2;
  options.chunk_elements = 6 * kBlockElements;
  options.wire = wire;
  return options;
}

struct Wire {
  const char* name;
  WireForms wire;
  std::int32_t first_stage;  // of ZeRO, from which on it is possible
};
const Wire kWires[] = {{"int8", kInt8, 1},
                       {"int8_errors", kInt8Errors, 1},
                       {"int4_errors", kInt4Errors, 1},
                       {"int4_errors_and_parameters", kBoth, 3},
                       {"parameters", kParameters, 3}};

class CodedRanks : public testing::TestWithParam<std::tuple<Wire, DType>> {};

// Trains at every stage that the wire allows, with the state in every tier or in some.
void expect_same_bits(const ModelRuntimeOptions& options, const MeshShape& shape,
                      std::int32_t first_stage, std::size_t every = 1) {
  const RankedRun expected = train_ranks(options, shape, first_stage);
  for (std::int32_t stage = first_stage; stage <= 3; ++stage) {
    for (std::size_t p = static_cast<std::size_t>(stage) % every; p < placements().size();
         p += every) {
      const Placed& placed = placements()[p];
      SCOPED_TRACE(fmt::format("{} at stage {}", placed.name, stage));
      // A stage passes a micro-batch on before it begins the next one.
      if (shape.pipeline > 1 && std::string_view(placed.name) == "layer_major") continue;
      ModelRuntimeOptions there = options;
      const TemporaryDirectory drive;
      placed.set(there);
      if (there.placement.has_nvme) there.nvme.directories = {{drive.path(), std::nullopt}};
      const RankedRun run = train_ranks(there, shape, stage);
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, expected.curves[0]);
      EXPECT_EQ(run.evaluations, expected.evaluations);
      EXPECT_EQ(run.state, expected.state);
    }
  }
}

TEST_P(CodedRanks, HaveTheSameBitsInAllTiersAndStages) {
  const auto& [wire, type] = GetParam();
  expect_same_bits(coded_options(type, wire.wire), {.data = 3}, wire.first_stage);
}

TEST_P(CodedRanks, HaveTheSameBitsWithHalfGradients) {
  const auto& [wire, type] = GetParam();
  ModelRuntimeOptions options = coded_options(type, wire.wire, "gpt2");
  options.gradient_type = DType::kBF16;
  options.optimizer.max_grad_norm = 0;
  expect_same_bits(options, {.data = 2}, wire.first_stage, 3);
}

TEST_P(CodedRanks, HaveTheSameBitsWithStages) {
  const auto& [wire, type] = GetParam();
  ModelRuntimeOptions options = coded_options(type, wire.wire);
  expect_same_bits(options, {.data = 2, .pipeline = 2}, wire.first_stage, 3);
  const RankedRun whole = train_ranks(options, {.data = 2}, wire.first_stage);
  const RankedRun stages = train_ranks(options, {.data = 2, .pipeline = 2}, wire.first_stage);
  EXPECT_EQ(stages.curves[0], whole.curves[0]);
  EXPECT_EQ(stages.state, whole.state);
}

TEST_P(CodedRanks, WorkWithTensorRanks) {
  const auto& [wire, type] = GetParam();
  expect_same_bits(coded_options(type, wire.wire), {.data = 2, .tensor = 2}, wire.first_stage, 5);
}

TEST_P(CodedRanks, SendFewerBytesAndLearnTheSame) {
  const auto& [wire, type] = GetParam();
  ModelRuntimeOptions options = coded_options(type, wire.wire);
  const RankedRun coded = train_ranks(options, 2, 3);
  options.wire = {};
  const RankedRun plain = train_ranks(options, 2, 3);
  EXPECT_NE(coded.state, plain.state);
  EXPECT_LT(distance(coded.curves[0], plain.curves[0]).loss, 2e-2);
  EXPECT_LT(coded.bytes_sent, plain.bytes_sent);
}

INSTANTIATE_TEST_SUITE_P(Wires, CodedRanks,
                         testing::Combine(testing::ValuesIn(kWires),
                                          testing::Values(DType::kBF16, DType::kF32)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name,
                                              name_of(std::get<1>(info.param)));
                         });

// An adapter trains few elements of each unit. The others are frozen, and are sent as they are:
// numbers, or codes of nf4.
TEST(CodedParameters, LeaveFrozenOnesAsTheyAre) {
  for (const bool is_quantized : {false, true}) {
    SCOPED_TRACE(is_quantized);
    ModelRuntimeOptions options = coded_options(DType::kBF16, kBoth);
    options.model = with_adapter(options.model, {.rank = 5, .alpha = 12, .targets = {}}, {});
    options.optimizer.max_grad_norm = 0.02;
    if (is_quantized) options.base_quantization = QuantizedForm::kNf4;
    expect_same_bits(options, {.data = 2}, 3, 4);
  }
}

// Islands divide states otherwise, and reduce gradients over all ranks as others do.
TEST(CodedGradients, HaveTheSameBitsInIslands) {
  ModelRuntimeOptions options = coded_options(DType::kF32, kInt4Errors);
  options.chunk_elements = 8 * kBlockElements;
  const RankedRun expected = train_ranks(options, 4, 1);
  for (const ZeroPartition partition : {ZeroPartition::kHpz, ZeroPartition::kHsdp}) {
    options.zero_partition = partition;
    const RankedRun run = train_ranks(options, {.data = 4, .islands = 2}, 3);
    EXPECT_EQ(run.curves[0], expected.curves[0]);
    EXPECT_EQ(run.state, expected.state);
  }
}

double distance_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum);
}

// With SGD the parameters are the sum of all gradients. Error feedback adds the errors of one
// step's codes to the next gradient, so that the sum lacks only the errors of the last step.
TEST(CodedGradients, LoseOnlyTheLastErrorsWithFeedback) {
  ModelRuntimeOptions options = coded_options(DType::kF32, {});
  options.optimizer.rule = find_update_rule("sgd");
  options.optimizer.numbers.weight_decay = 0;
  options.optimizer.max_grad_norm = 0;
  const std::vector<float> plain = train_ranks(options, 2, 1).state;
  options.wire = {.gradients = WireForm::kInt4};
  const double without = distance_of(train_ranks(options, 2, 1).state, plain);
  options.wire = kInt4Errors;
  const double with = distance_of(train_ranks(options, 2, 1).state, plain);
  EXPECT_GT(with, 0);
  EXPECT_LT(with, 0.8 * without);
}

// Gradients of fp32 are 4 bytes, and their codes 1 + 4/256.
TEST(CodedGradients, SendTheBytesOfTheirCodes) {
  ModelRuntimeOptions options = coded_options(DType::kF32, {});
  const auto bytes_of = [&](const WireForms& wire) {
    options.wire = wire;
    return train_ranks(options, 2, 1).run.traffic.of(Lane::kCollective);
  };
  const double plain = bytes_of({});
  const std::int64_t elements = [&] {
    std::int64_t sum = 0;
    options.ranks.shape.data = 2;
    for (const ParameterGroup& group : plan_model(options).model.groups) {
      sum += group.trained_elements();
    }
    options.ranks.shape.data = 1;
    return sum;
  }();
  // A step sends a half of all gradients to the other rank, and gathers a half of the parameters.
  const double halves = static_cast<double>(kSteps * elements) / 2;
  EXPECT_NEAR(plain - bytes_of(kInt8), halves * (4 - (1 + 4 / 256.)), 1);
  EXPECT_NEAR(plain - bytes_of(kInt4Errors), halves * (4 - (0.5 + 4 / 256.)), 1);
}

// Each gather of bf16 parameters sends a half of them to the other rank, in 2 bytes or as codes.
TEST(CodedParameters, SendTheBytesOfTheirCodes) {
  ModelRuntimeOptions options = coded_options(DType::kBF16, {});
  const auto bytes_of = [&](const WireForms& wire) {
    options.wire = wire;
    return train_ranks(options, 2, 3).run.traffic.of(Lane::kCollective);
  };
  const double saved = bytes_of({}) - bytes_of(kParameters);
  options.wire = {};
  options.ranks.shape.data = 2;
  std::int64_t elements = 0;
  for (const ParameterGroup& group : plan_model(options).model.groups) {
    elements += group.trained_elements();
  }
  const double gathers = saved / (2 - (1 + 4 / 256.)) / (static_cast<double>(elements) / 2);
  EXPECT_GE(gathers, kSteps);
  EXPECT_NEAR(gathers, std::round(gathers), 1e-9);
}

class RefusedWires : public testing::Test {
 protected:
  RefusedWires() : options_(coded_options(DType::kBF16, kInt8)) {
    options_.ranks.shape.data = 2;
    options_.zero_stage = 1;
  }
  std::string refusal() const {
    try {
      plan_model(options_);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  ModelRuntimeOptions options_;
};

TEST_F(RefusedWires, NameTheOptionAndTheReason) {
  EXPECT_EQ(refusal(), "");
  options_.zero_stage = 0;
  EXPECT_NE(refusal().find("wire.gradients int8: with ZeRO stage 0"), std::string::npos);
  options_.zero_stage = 2;
  options_.placement.reduces_micro_batches = true;
  EXPECT_NE(refusal().find("wire.gradients int8: ranks add"), std::string::npos);
  options_.placement.reduces_micro_batches = false;
  options_.wire = kParameters;
  EXPECT_NE(refusal().find("wire.parameters int8: with ZeRO stages 0 to 2"), std::string::npos);
  options_.wire.parameters = WireForm::kInt4;
  EXPECT_NE(refusal().find("wire.parameters int4: is not built"), std::string::npos);
  options_.wire = {.keeps_errors = true};
  EXPECT_NE(refusal().find("wire.keeps_errors: gradients are not coded"), std::string::npos);
}

TEST_F(RefusedWires, AreThoseOfOneRankOfIslandsAndOfNoise) {
  options_.wire = kInt4Errors;
  options_.measures_gradient_noise = true;
  EXPECT_NE(refusal().find("wire.gradients int4: measures_gradient_noise"), std::string::npos);
  options_.wire = kInt8;
  EXPECT_EQ(refusal(), "");
  options_.ranks.shape.data = 1;
  options_.measures_gradient_noise = false;
  EXPECT_NE(refusal().find("wire.gradients int8: there is one"), std::string::npos);
  options_.wire = kParameters;
  EXPECT_NE(refusal().find("wire.parameters int8: there is one"), std::string::npos);
  options_.ranks.shape = {.data = 4, .islands = 2};
  options_.zero_stage = 3;
  options_.zero_partition = ZeroPartition::kHpz;
  EXPECT_NE(refusal().find("wire.parameters int8: is not built for parameters that an island"),
            std::string::npos);
}

}  // namespace
}  // namespace terrace
