#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/engine/resumed_ranks.h"
#include "tests/runtime/engine/step_switches.h"

// Steps of adapters with dropout. The dropped elements depend on the seed and on a row's sample and
// position alone, so switches, ranks and a resumed training do not change bits.
namespace terrace {
namespace {

struct DropoutChoice {
  const char* name;
  std::string_view family;
  std::vector<std::string> patterns;
  bool has_documents;
  std::optional<QuantizedForm> base;
};

const std::vector<DropoutChoice>& dropout_choices() {
  static const std::vector<DropoutChoice> kChoices = {
      {"llama", "llama", {}, false, std::nullopt},
      {"some_of_qwen3_in_documents",
       "qwen3",
       {"model.layers.1.*", "*.4.*.down_proj"},
       true,
       std::nullopt},
      {"gpt2", "gpt2", {"c_attn", "*.4.mlp.c_proj"}, false, std::nullopt},
      {"phi3_over_nf4", "phi3", {}, true, QuantizedForm::kNf4},
  };
  return kChoices;
}

ModelRuntimeOptions dropout_options(const DropoutChoice& choice, DType type, double dropout = 0.4) {
  ModelRuntimeOptions options = tiny_options(tiny_model(choice.family, false, false), type);
  AdapterOptions adapter;
  adapter.rank = 5;
  adapter.alpha = 12;
  adapter.dropout = dropout;
  options.model = with_adapter(options.model, adapter, choice.patterns);
  options.batch.has_documents = choice.has_documents;
  options.batch.has_samples = true;
  options.dropout_seed = 5;
  options.base_quantization = choice.base;
  options.optimizer.max_grad_norm = 0.02;
  return options;
}

// Cuts each micro-batch of two sequences into two of one sequence.
std::vector<std::int32_t> cut_in_two(const BatchShape& batch,
                                     const std::vector<std::int32_t>& tokens) {
  const auto rows = static_cast<std::size_t>(batch.rows());
  const auto lists = static_cast<std::size_t>(batch.lists());
  std::vector<std::int32_t> halves;
  for (std::size_t begin = 0; begin < tokens.size(); begin += lists * rows) {
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t list = 0; list < lists; ++list) {
        const auto first =
            tokens.begin() + static_cast<std::ptrdiff_t>(begin + list * rows + half * rows / 2);
        halves.insert(halves.end(), first, first + static_cast<std::ptrdiff_t>(rows / 2));
      }
    }
  }
  return halves;
}

class DropoutSteps : public testing::TestWithParam<std::size_t> {
 protected:
  const DropoutChoice& choice() const { return dropout_choices().at(GetParam()); }
};

// B starts at zero, so the first loss is the model's, whatever is dropped. The next ones depend on
// the probability and on the seed.
TEST_P(DropoutSteps, DependOnTheSeedAndTheProbability) {
  ModelRuntimeOptions options = dropout_options(choice(), DType::kF32);
  const std::vector<double> dropped = result_of(options, 3).curve.losses;
  const std::vector<double> whole =
      result_of(dropout_options(choice(), DType::kF32, 0), 3).curve.losses;
  EXPECT_EQ(dropped.front(), whole.front());
  EXPECT_NE(dropped.back(), whole.back());
  EXPECT_LT(dropped.back(), dropped.front());
  options.dropout_seed = 6;
  const std::vector<double> other = result_of(options, 3).curve.losses;
  EXPECT_EQ(other.front(), dropped.front());
  EXPECT_NE(other.back(), dropped.back());
}

// The evaluation after some steps is the evaluation of the same state without dropout.
TEST_P(DropoutSteps, EvaluateWithoutDropping) {
  ModelRuntimeOptions options = dropout_options(choice(), DType::kF32);
  options.base_quantization.reset();  // the state that is read out has the base's restored numbers
  const SwitchedRun trained = result_of(options, 3);
  const auto evaluated = [&](const ModelRuntimeOptions& one, const auto& batch) {
    const TierPlan plan = plan_model(one);
    SilentLog log;
    ModelRuntime engine(one, plan, log);
    engine.fill_state(trained.state);
    return engine.evaluate(batch);
  };
  ModelRuntimeOptions plain = options;
  plain.model.adapter.dropout = 0;
  EXPECT_EQ(evaluated(plain, batch_of_step(plain, 1)), trained.evaluation);
  plain.batch.has_samples = false;
  EXPECT_EQ(evaluated(plain, batch_of_step(plain, 1)), trained.evaluation);
  EXPECT_EQ(evaluated(options, evaluation_batch(options, 1)), trained.evaluation);
  EXPECT_NE(evaluated(options, batch_of_step(options, 1)), trained.evaluation);
}

TEST_P(DropoutSteps, KeepTheBitsWhateverTheSwitch) {
  expect_bits_over_switches(dropout_options(choice(), DType::kBF16), GetParam() % 2);
}

TEST_P(DropoutSteps, ResumeWithTheSameBits) {
  ModelRuntimeOptions options = dropout_options(choice(), DType::kBF16);
  options.base_quantization.reset();  // the state that is read out has the base's restored numbers
  expect_resumed_bits(options);
}

TEST_P(DropoutSteps, KeepTheBitsOverRanks) {
  ModelRuntimeOptions options = dropout_options(choice(), DType::kBF16);
  options.placement.micro_batches = 2;
  expect_bits_over_ranks(options, {.data = 2}, 2);
  if (choice().base) return;
  expect_bits_over_ranks(options, {.data = GetParam() == 0 ? 2 : 1, .tensor = 2}, 2);
}

// The same samples have the same elements dropped in a micro-batch of two and in two of one. Only
// the rounding of sums over rows differs.
TEST_P(DropoutSteps, DropTheSameWhateverTheMicroBatch) {
  const ModelRuntimeOptions options = dropout_options(choice(), DType::kF32);
  const auto curve_of = [&](const ModelRuntimeOptions& one) {
    const TierPlan plan = plan_model(one);
    SilentLog log;
    ModelRuntime engine(one, plan, log);
    engine.fill_state(RandomState(1234));
    Curve curve;
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::vector<std::int32_t> wide = batch_of_step(options, step);
      const std::vector<std::int32_t> tokens =
          one.batch.sequences == 1 ? cut_in_two(options.batch, wide) : wide;
      engine.begin_step({step, tokens, target_tokens_of_step(options, step), 2e-3});
      const StepResult result = engine.finish_step().result;
      curve.losses.push_back(result.loss);
      curve.norms.push_back(result.gradient_norm);
      engine.drain();
    }
    return curve;
  };
  ModelRuntimeOptions narrow = options;
  narrow.batch.sequences = 1;
  narrow.placement.micro_batches = 2 * options.placement.micro_batches;
  ModelRuntimeOptions other = options;
  other.dropout_seed = 6;
  const Curve whole = curve_of(options);
  EXPECT_LT(distance(curve_of(narrow), whole).loss, 1e-6);
  EXPECT_LT(distance(curve_of(narrow), whole).norm, 1e-5);
  EXPECT_GT(distance(curve_of(other), whole).loss, 1e-5);
  EXPECT_GT(distance(curve_of(other), whole).norm, 1e-3);
}

Curve curve_of_ranks(const ModelRuntimeOptions& options, const MeshShape& shape) {
  Curve curve;
  on_ranks(options, shape, 0,
           [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
             engine.fill_state(RandomState(1234));
             TrainedRun run;
             train_steps(engine, own, 1, 6, run);
             if (world.rank() == 0) curve = run.curve;
           });
  return curve;
}

// Returns the distance of the first steps of two curves.
Distance first_distance(const Curve& a, const Curve& b) {
  return distance({{a.losses[0]}, {a.norms[0]}}, {{b.losses[0]}, {b.norms[0]}});
}

// Ranks that share a layer's columns drop the columns that one rank drops. The bounds are as in
// adapters_test.cc. With other elements dropped, curves are farther apart; the first loss is not,
// because B starts at zero.
TEST_P(DropoutSteps, OfTensorParallelRanksAreThoseOfOneRank) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    ModelRuntimeOptions options = dropout_options(choice(), type);
    options.base_quantization.reset();
    options.placement.micro_batches = 2;
    const bool is_exact = type == DType::kF32;
    const double norm_bound = is_exact ? 1e-6 : 1e-2;
    const double loss_bound = is_exact ? 1e-5 : 3e-3;
    const Curve one = curve_of_ranks(options, {});
    for (const bool shares_rows : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(type), shares_rows));
      options.sequence_parallel = shares_rows;
      const Curve shared = curve_of_ranks(options, {.tensor = 2});
      EXPECT_LT(first_distance(shared, one).loss, is_exact ? 1e-7 : 2e-4);
      EXPECT_LT(first_distance(shared, one).norm, norm_bound);
      EXPECT_LT(distance(shared, one).loss, loss_bound);
    }
    options.dropout_seed = 6;
    const Curve other = curve_of_ranks(options, {});
    EXPECT_GT(first_distance(other, one).norm, norm_bound) << name_of(type);
    EXPECT_GT(distance(other, one).loss, is_exact ? loss_bound : 1e-4) << name_of(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, DropoutSteps,
                         testing::Range(std::size_t{0}, dropout_choices().size()),
                         [](const auto& info) { return dropout_choices().at(info.param).name; });

TEST(DropoutPlans, NeedTheSamplesAndNoMagnitudes) {
  const auto expect_refused = [](const ModelRuntimeOptions& options, const char* why) {
    try {
      plan_model(options);
      FAIL() << why;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
  };
  ModelRuntimeOptions options = dropout_options(dropout_choices().front(), DType::kF32);
  options.batch.has_samples = false;
  expect_refused(options, "dropout 0.4 needs the numbers of the samples");
  options.batch.has_samples = true;
  options.model.adapter.has_magnitudes = true;
  expect_refused(options, "dropout 0.4 is not built together with magnitudes (dora)");
}

}  // namespace
}  // namespace terrace
