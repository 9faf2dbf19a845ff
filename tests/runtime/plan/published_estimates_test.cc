// Estimates of memory that others have published, beside the plans of the same trainings.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "runtime/engine/model_runtime.h"
#include "runtime/model/model_shape.h"

namespace terrace {
namespace {

// A decoder like GPT-2, whose embedding is small beside its blocks.
ModelConfig gpt_of(std::int64_t layers, std::int64_t width, std::int64_t vocabulary = 50304) {
  return with_shape(
      load_model_config("gpt2-124m"),
      {.layers = layers, .width = width, .heads = width / 128, .vocabulary = vocabulary});
}

double parameters_of(const ModelConfig& model) {
  double parameters = 0;
  for (const UnitLayout& unit : parameter_layout(model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      parameters += static_cast<double>(tensor.elements());
    }
  }
  return parameters;
}

struct Ranks {
  std::int32_t zero_stage = 0;
  std::int32_t data = 1;
};

// Mixed precision as ZeRO and Megatron have it: fp32 masters beside the parameters.
ModelRuntimeOptions options_for(const ModelConfig& model, const Ranks& ranks) {
  ModelRuntimeOptions options;
  options.model = model;
  options.batch = {.sequences = 1, .positions = 128};
  options.evaluates = false;
  options.optimizer.splits_bf16_masters = false;
  options.placement.homes[StateClass::kParameters] = Tier::kHost;
  options.placement.homes[StateClass::kGradients] = Tier::kHost;
  options.placement.homes[StateClass::kOptimizer] = Tier::kHost;
  options.placement.homes[StateClass::kActivations] = Tier::kHost;
  options.zero_stage = ranks.zero_stage;
  options.ranks.shape.data = ranks.data;
  return options;
}

// Returns the bytes that a rank keeps its states in, from the end of a step's compute to the next.
double state_bytes(const ModelRuntimeOptions& options) {
  double bytes = 0;
  for (const Buffer& buffer : plan_model(options).training.program.buffers) {
    const BufferKind kind = buffer.key.kind;
    if (kind == BufferKind::kParameters || kind == BufferKind::kState ||
        kind == BufferKind::kGradients) {
      bytes += static_cast<double>(buffer.size_bytes);
    }
  }
  return bytes;
}

// The table's parts beside the rounded figures of the paper: ranks, then GB of a rank with stages
// 1, 2 and 3 for 7.5 thousand million parameters.
struct ZeroRow {
  std::int32_t ranks = 1;
  std::array<double, 3> gigabytes = {};
};

// ZeRO (Rajbhandari et al., arXiv:1910.02054), Table 1: 2 bytes a parameter for fp16 parameters, 2
// for gradients, 12 for fp32 parameters and moments, of which stage 1 shares out the last, stage 2
// also the second and stage 3 all. A plan keeps fixed-size chunks of each group on a rank, which
// adds padding where there are many ranks.
TEST(PublishedEstimates, ZeroTable1) {
  constexpr auto kTable = std::to_array<ZeroRow>({{1, {120, 120, 120}},
                                                  {4, {52.5, 41.3, 30}},
                                                  {16, {35.6, 21.6, 7.5}},
                                                  {64, {31.4, 16.6, 1.88}},
                                                  {256, {30.4, 15.4, 0.47}},
                                                  {1024, {30.1, 15.1, 0.12}}});
  constexpr double kParameters = 7.5e9;
  const ModelConfig model = gpt_of(36, 4096);
  const double scale = kParameters / parameters_of(model);
  for (const ZeroRow& row : kTable) {
    for (std::int32_t stage = 1; stage <= 3; ++stage) {
      ModelRuntimeOptions options = options_for(model, {stage, row.ranks});
      options.gradient_type = DType::kBF16;
      const double cell = row.gigabytes.at(static_cast<std::size_t>(stage) - 1);
      const double planned = state_bytes(options) * scale * 1e-9;
      EXPECT_NEAR(planned, cell, 0.03 * cell + 0.01)
          << "stage " << stage << " of " << row.ranks << " ranks";
    }
  }
}

// The states of the models of ZeRO-Infinity (Rajbhandari et al., arXiv:2104.07857), Fig. 2a, are 20
// bytes a parameter: besides those above, the paper keeps fp32 gradients. A plan keeps gradients
// once, in fp32 here, and so 18 bytes. The paper's TB is 2^40.
TEST(PublishedEstimates, ZeroInfinityFigure2a) {
  struct Row {
    std::int64_t layers;
    std::int64_t width;
    double terabytes;
  };
  constexpr auto kTable = std::to_array<Row>(
      {{80, 10240, 1.83}, {100, 20480, 9.16}, {128, 25600, 18.31}, {195, 65536, 182.81}});
  for (const Row& row : kTable) {
    // The paper counts the blocks' matrices alone.
    const ModelConfig model = gpt_of(row.layers, row.width, 256);
    ModelRuntimeOptions options = options_for(model, {});
    options.chunk_elements = std::int64_t{1} << 30;  // fewer ops, and so a shorter test
    const double planned = state_bytes(options) / std::pow(2, 40);
    EXPECT_NEAR(planned * 20 / 18, row.terabytes, 0.01 * row.terabytes) << row.width;
  }
}

// Megatron-LM's theoretical_memory_usage.py: 18 bytes a parameter, and with its distributed
// optimizer, which is ZeRO's stage 1, 6 + 12 / ranks.
TEST(PublishedEstimates, MegatronTheoreticalMemory) {
  const ModelConfig model = gpt_of(24, 2048);
  const double parameters = parameters_of(model);
  EXPECT_NEAR(state_bytes(options_for(model, {})) / parameters, 18, 0.01);
  for (const std::int32_t ranks : {2, 8, 32}) {
    EXPECT_NEAR(state_bytes(options_for(model, {1, ranks})) / parameters, 6 + 12.0 / ranks, 0.05)
        << ranks;
  }
}

// accelerate estimate-memory (huggingface/accelerate, commands/estimate.py): a training with Adam
// takes four times the parameters in fp32.
TEST(PublishedEstimates, AccelerateTraining) {
  ModelRuntimeOptions options = options_for(gpt_of(12, 1024), {});
  options.compute_type = DType::kF32;
  EXPECT_NEAR(state_bytes(options) / parameters_of(options.model), 4 * 4, 0.01);
}

// Megatron-LM (Narayanan et al., arXiv:2104.04473), Table 1: parameters, by equation 2, and the
// operations of a step, by equation 3. The operations count the forward twice, for full
// recomputation, and both halves of attention's products.
TEST(PublishedEstimates, MegatronTable1) {
  struct Row {
    std::int64_t layers;
    std::int64_t width;
    double billions;  // of parameters
  };
  constexpr auto kTable = std::to_array<Row>({{24, 2304, 1.7},
                                              {30, 3072, 3.6},
                                              {36, 4096, 7.5},
                                              {40, 6144, 18.4},
                                              {48, 8192, 39.1},
                                              {60, 10240, 76.1},
                                              {80, 12288, 145.6},
                                              {96, 16384, 310.1},
                                              {105, 20480, 529.6},
                                              {128, 25600, 1008.0}});
  constexpr double kSequence = 2048;
  constexpr double kVocabulary = 51200;
  for (const Row& row : kTable) {
    ModelConfig model = with_shape(gpt_of(row.layers, row.width, 51200), {.positions = 2048});
    EXPECT_NEAR(parameters_of(model) * 1e-9, row.billions, 0.002 * row.billions + 0.05);
    ModelRuntimeOptions options = options_for(model, {});
    options.batch = {.sequences = 1, .positions = 2048};
    const ComputeModel units = step_model_of(options);
    double flops = 0;
    for (const UnitModel& unit : units.units) {
      flops += unit.forward_flops + unit.backward_flops + unit.masked_flops;
      // The forward again. A head is not recomputed.
      if (unit.kind == UnitKind::kBlock) flops += unit.forward_flops + unit.masked_flops / 3;
    }
    const auto layers = static_cast<double>(row.layers);
    const auto width = static_cast<double>(row.width);
    const double published = 96 * kSequence * layers * width * width *
                             (1 + kSequence / (6 * width) + kVocabulary / (16 * layers * width));
    EXPECT_NEAR(flops / published, 1, 0.01) << row.billions;
  }
}

}  // namespace
}  // namespace terrace
