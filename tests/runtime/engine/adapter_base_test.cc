#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "kernels/reference/reference_kernels.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/matrix_quantizer.h"
#include "tests/runtime/engine/resumed_ranks.h"
#include "tests/runtime/engine/step_switches.h"

// Steps that train adapters over a quantised base. They must have the same bits as steps over a
// model whose matrices hold the numbers that the codes stand for, whatever the tiers, the ranks and
// the resumes.
namespace terrace {
namespace {

using testing::HasSubstr;

// A model's parameters. The matrices of blocks are quantised, read back, and rounded to the type
// that computes.
class RestoredState final : public StateSource {
 public:
  RestoredState(const StateSource& source, QuantizedForm form, DType type)
      : source_(source), form_(form), type_(type) {}

  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    for_each_tensor_part(
        unit, begin, out,
        [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
          const bool is_matrix = is_layer_weight(tensor.kind) || is_of_expert(tensor.kind);
          const bool is_restored = field == StateField::kMaster && !tensor.trainable && is_matrix;
          if (!is_restored) return source_.read(field, unit, tensor.offset + first, part);
          const std::vector<float> numbers = restored(unit, tensor);
          std::copy_n(numbers.begin() + first, part.size(), part.begin());
        });
  }

 private:
  std::vector<float> restored(const UnitLayout& unit, const ParameterTensor& tensor) const {
    const QuantizedShape shape = {.form = form_, .elements = tensor.elements()};
    WorkerArena workers(1);
    std::vector<std::byte> bytes = quantize_matrix(
        shape,
        [&](std::int64_t at, std::span<float> out) {
          source_.read(StateField::kMaster, unit, tensor.offset + at, out);
        },
        workers);
    const auto elements = static_cast<std::size_t>(shape.elements);
    const TensorView codes = view(bytes.data(), DType::kU8, shape.size_bytes());
    if (type_ == DType::kF32) {
      std::vector<float> numbers(elements);
      reference_kernels().dequantize({}, {codes, shape, view(std::span(numbers))});
      return numbers;
    }
    std::vector<Bf16> halves(elements);
    reference_kernels().dequantize({}, {codes, shape, view(std::span(halves))});
    std::vector<float> numbers;
    for (const Bf16 half : halves) numbers.push_back(to_float(half));
    return numbers;
  }

  const StateSource& source_;
  const QuantizedForm form_;
  const DType type_;
};

struct BaseChoice {
  const char* name;
  std::string_view family;
  QuantizedForm form;
  std::vector<std::string> patterns;
  bool odd = false;  // sizes that are no multiples of blocks
};

const std::vector<BaseChoice>& base_choices() {
  static const std::vector<BaseChoice> kChoices = {
      {"llama_nf4", "llama", QuantizedForm::kNf4, {}},
      {"llama_int8", "llama", QuantizedForm::kInt8, {"q_proj", "down_proj"}},
      {"gpt2_nf4", "gpt2", QuantizedForm::kNf4, {"c_attn"}},
      {"phi3_int8", "phi3", QuantizedForm::kInt8, {}},
      {"odd_gemma2_nf4", "gemma2", QuantizedForm::kNf4, {"o_proj", "gate_proj"}, true},
      {"odd_qwen3_int8", "qwen3", QuantizedForm::kInt8, {"*.3.*"}, true},
      {"mixtral_nf4", "mixtral", QuantizedForm::kNf4, {}},
      {"odd_mixtral_int8", "mixtral", QuantizedForm::kInt8, {"q_proj"}, true},
      {"qwen3_moe_int8", "qwen3_moe", QuantizedForm::kInt8, {}},
      {"odd_qwen3_moe_nf4", "qwen3_moe", QuantizedForm::kNf4, {"v_proj", "mlp.down_proj"}, true},
      {"qwen2_moe_nf4", "qwen2_moe", QuantizedForm::kNf4, {}},  // also of the shared expert
      {"odd_glm4_moe_int8", "glm4_moe", QuantizedForm::kInt8, {"shared_experts.up_proj"}, true},
      {"gpt_oss_nf4", "gpt_oss", QuantizedForm::kNf4, {}},
  };
  return kChoices;
}

ModelRuntimeOptions unquantized_options(const BaseChoice& choice, DType type) {
  ModelRuntimeOptions options = tiny_options(tiny_model(choice.family, true, choice.odd), type);
  options.model =
      with_adapter(options.model, {.rank = 5, .alpha = 12, .targets = {}}, choice.patterns);
  options.optimizer.max_grad_norm = 0.02;
  return options;
}

ModelRuntimeOptions quantized_options(const BaseChoice& choice, DType type) {
  ModelRuntimeOptions options = unquantized_options(choice, type);
  options.base_quantization = choice.form;
  return options;
}

Curve curve_from(const ModelRuntimeOptions& options, const StateSource& start, std::int64_t steps) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(start);
  TrainedRun run;
  train_steps(engine, options, 1, steps, run);
  run.curve.losses.push_back(engine.evaluate(batch_of_step(options, 1)));
  return run.curve;
}

class QuantizedBase : public testing::TestWithParam<std::size_t> {
 protected:
  const BaseChoice& choice() const { return base_choices().at(GetParam()); }
};

TEST_P(QuantizedBase, HasTheBitsOfTheNumbersThatItsCodesStandFor) {
  const RandomState start(1234);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Curve quantized = curve_from(quantized_options(choice(), type), start, 3);
    const ModelRuntimeOptions options = unquantized_options(choice(), type);
    EXPECT_EQ(quantized, curve_from(options, RestoredState(start, choice().form, type), 3));
    EXPECT_NE(quantized, curve_from(options, start, 3));
  }
}

TEST_P(QuantizedBase, KeepsTheBitsWhateverTheSwitch) {
  const DType type = GetParam() % 3 == 0 ? DType::kF32 : DType::kBF16;
  expect_bits_over_switches(quantized_options(choice(), type), GetParam() % 2);
}

// Tries data-parallel ranks at every stage, and stages of a pipeline.
TEST_P(QuantizedBase, KeepsTheBitsOverRanks) {
  ModelRuntimeOptions options = quantized_options(choice(), DType::kBF16);
  options.placement.micro_batches = 2;
  expect_bits_over_ranks(options, {.data = 2}, 2);
}

// A checkpoint holds only the tensors that train. The base is read again from its source, and
// quantised again.
class ResumedState final : public StateSource {
 public:
  ResumedState(const SnapshotState& trained, const StateSource& base)
      : trained_(trained), base_(base) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    for_each_tensor_part(
        unit, begin, out,
        [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
          const StateSource& source = tensor.trainable ? trained_ : base_;
          source.read(field, unit, tensor.offset + first, part);
        });
  }

 private:
  const StateSource& trained_;
  const StateSource& base_;
};

TEST_P(QuantizedBase, ResumesWithTheSameBits) {
  const ModelRuntimeOptions options = quantized_options(choice(), DType::kBF16);
  const SwitchedRun whole = result_of(options, 4);
  std::optional<SnapshotState> half;
  train_tiny(options, 2, [&](ModelRuntime& engine) { half.emplace(engine); });
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  const RandomState base(1234);
  engine.fill_state(ResumedState(*half, base));
  TrainedRun rest;
  train_steps(engine, options, 3, 4, rest);
  EXPECT_TRUE(SnapshotState(engine) == whole.state);
}

INSTANTIATE_TEST_SUITE_P(Choices, QuantizedBase,
                         testing::Range(std::size_t{0}, base_choices().size()),
                         [](const auto& info) { return base_choices().at(info.param).name; });

// --- tensor-parallel ranks ----------------------------------------------------------------------

ModelRuntimeOptions wide_options(std::string_view family, QuantizedForm form) {
  SmallModel sizes;
  sizes.layers = 2;
  sizes.heads = 4;
  sizes.head_width = 32;
  sizes.width = 128;
  sizes.key_value_heads = 2;
  sizes.intermediate = family == "gpt2" || family == "mixtral" ? 512 : 256;
  sizes.vocabulary = 256;
  sizes.tied = true;
  ModelRuntimeOptions options = tiny_options(small_model(family, sizes), DType::kF32);
  options.model = with_adapter(options.model, {.rank = 4, .alpha = 8, .targets = {}}, {});
  options.base_quantization = form;
  options.placement.micro_batches = 2;
  return options;
}

std::vector<Curve> curves_of_ranks(const ModelRuntimeOptions& options, const StateSource& start) {
  std::vector<Curve> curves;
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.tensor = 2}}) {
    on_ranks(options, shape, 0,
             [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
               engine.fill_state(start);
               TrainedRun run;
               train_steps(engine, own, 1, 3, run);
               if (world.rank() == 0) curves.push_back(run.curve);
             });
  }
  return curves;
}

// Each rank has the same numbers as the whole matrix has. So losses differ only by the order of
// sums, and the same ranks over a plain base of the numbers that the codes stand for give the same
// losses, bit by bit.
TEST(QuantizedBaseOverTensorRanks, HasTheNumbersOfOneRank) {
  const RandomState start(1234);
  for (const QuantizedForm form : {QuantizedForm::kNf4, QuantizedForm::kInt8}) {
    for (const std::string_view family : {"llama", "gpt2", "phi3", "mixtral"}) {
      SCOPED_TRACE(family);
      ModelRuntimeOptions options = wide_options(family, form);
      const std::vector<Curve> quantized = curves_of_ranks(options, start);
      options.base_quantization.reset();
      EXPECT_EQ(quantized, curves_of_ranks(options, RestoredState(start, form, DType::kF32)));
      EXPECT_LT(distance(quantized[1], quantized[0]).loss, 1e-5);
    }
  }
}

TEST(QuantizedBaseOverTensorRanks, IsRefusedWhereRanksWouldCutBlocks) {
  ModelRuntimeOptions options = quantized_options(base_choices().front(), DType::kBF16);
  options.ranks.shape.tensor = 2;
  try {
    plan_model(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("runs of 32 numbers"));
    EXPECT_THAT(error.what(), HasSubstr("base_quantization"));
  }
}

// --- costs --------------------------------------------------------------------------------------

// A quantised base takes fewer bytes in its homes, so fewer bytes move.
TEST(QuantizedBaseCosts, AreThoseOfItsBytes) {
  ModelRuntimeOptions options = wide_options("llama", QuantizedForm::kNf4);
  options.compute_type = DType::kBF16;
  const StepModel quantized = step_model_of(options);
  options.base_quantization.reset();
  const StepModel plain = step_model_of(options);
  constexpr std::int64_t kMatrices = 128 * (2 * 128 + 2 * 64 + 3 * 256);
  const auto frozen_bytes = [](const StepModel& model) {
    return model.groups.at(1).frozen_elements * std::int64_t{2};
  };
  const auto saved = static_cast<double>(frozen_bytes(plain) - frozen_bytes(quantized));
  EXPECT_NEAR(saved, (2.0 - 0.5 - 1.0 / 64) * kMatrices, 2.0 * 2 * kBlockElements);
  EXPECT_EQ(quantized.groups.at(1).trained_elements(), plain.groups.at(1).trained_elements());
  EXPECT_EQ(quantized.units.at(1).forward_flops, plain.units.at(1).forward_flops);
  EXPECT_EQ(quantized.units.at(1).backward_flops, plain.units.at(1).backward_flops);
  EXPECT_EQ(quantized.units.front(), plain.units.front());
}

}  // namespace
}  // namespace terrace
