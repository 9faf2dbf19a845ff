#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/train/tuning.h"
#include "tests/runtime/engine/resumed_ranks.h"
#include "tests/runtime/engine/step_switches.h"

// Steps of adapters with magnitudes (DoRA): the loss that they begin with, and that switches do not
// change bits.
namespace terrace {
namespace {

using testing::HasSubstr;

struct DoraChoice {
  const char* name;
  std::string_view family;
  std::vector<std::string> patterns;
  std::optional<QuantizedForm> base;
};

const std::vector<DoraChoice>& dora_choices() {
  static const std::vector<DoraChoice> kChoices = {
      {"llama", "llama", {}, std::nullopt},
      {"some_of_llama_over_nf4", "llama", {"k_proj", "down_proj"}, QuantizedForm::kNf4},
      {"gpt2", "gpt2", {"c_attn", "*.4.mlp.c_proj"}, std::nullopt},
      {"phi3_over_int8", "phi3", {}, QuantizedForm::kInt8},
  };
  return kChoices;
}

ModelRuntimeOptions dora_options(const DoraChoice& choice, DType type, bool has_magnitudes = true) {
  ModelRuntimeOptions options = tiny_options(tiny_model(choice.family, true, false), type);
  AdapterOptions adapter;
  adapter.rank = 5;
  adapter.alpha = 12;
  adapter.has_magnitudes = has_magnitudes;
  options.model = with_adapter(options.model, adapter, choice.patterns);
  options.base_quantization = choice.base;
  options.optimizer.max_grad_norm = 0.02;
  return options;
}

class DoraSteps : public testing::TestWithParam<std::size_t> {
 protected:
  const DoraChoice& choice() const { return dora_choices().at(GetParam()); }
};

std::vector<double> losses_from_start(const ModelRuntimeOptions& options, std::int64_t steps) {
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  const RandomState base(1234);
  engine.fill_state(StartState(base, nullptr, 1234));
  TrainedRun run;
  train_steps(engine, options, 1, steps, run);
  return run.curve.losses;
}

// Each magnitude is the norm of its row. So the first loss is the model's, up to a rounding, or,
// over a quantised base, up to the change that quantisation makes to the row.
TEST_P(DoraSteps, BeginWithTheModelsLoss) {
  const std::vector<double> dora = losses_from_start(dora_options(choice(), DType::kF32), 3);
  const std::vector<double> lora = losses_from_start(dora_options(choice(), DType::kF32, false), 1);
  EXPECT_NEAR(dora.front(), lora.front(), (choice().base ? 1e-3 : 1e-6) * lora.front());
  EXPECT_LT(dora.back(), dora.front());
}

TEST_P(DoraSteps, ChangeAllOfTheAdapter) {
  DoraChoice plain = choice();
  plain.base.reset();
  const ModelRuntimeOptions options = dora_options(plain, DType::kF32);
  const SwitchedRun result = result_of(options, 3);
  int magnitudes = 0;
  for (const UnitLayout& unit : parameter_layout(options.model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      std::vector<float> initial(static_cast<std::size_t>(tensor.elements()));
      RandomState(1234).read(StateField::kMaster, unit, tensor.offset, initial);
      const std::vector<float> now = values_of(result, StateField::kMaster, unit, tensor);
      EXPECT_EQ(now != initial, is_adapter(tensor.kind)) << tensor.name;
      magnitudes += is_magnitude(tensor.kind) ? 1 : 0;
    }
  }
  EXPECT_GT(magnitudes, 0);
}

TEST_P(DoraSteps, KeepTheBitsWhateverTheSwitch) {
  expect_bits_over_switches(dora_options(choice(), DType::kBF16), GetParam() % 2);
}

TEST_P(DoraSteps, KeepTheBitsOverRanks) {
  ModelRuntimeOptions options = dora_options(choice(), DType::kBF16);
  options.placement.micro_batches = 2;
  expect_bits_over_ranks(options, {.data = 2}, 2);
}

TEST_P(DoraSteps, AreRefusedForTensorParallelRanks) {
  ModelRuntimeOptions options = dora_options(choice(), DType::kBF16);
  options.base_quantization.reset();
  options.ranks.shape.tensor = 2;
  try {
    plan_model(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("(dora) is not built"));
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, DoraSteps, testing::Range(std::size_t{0}, dora_choices().size()),
                         [](const auto& info) { return dora_choices().at(info.param).name; });

}  // namespace
}  // namespace terrace
