#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_patterns.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/step/verify.h"
#include "tests/runtime/engine/resumed_ranks.h"
#include "tests/runtime/engine/step_switches.h"

// Steps in which adapters train and the model is frozen: they begin with the model's own losses,
// switches do not change bits, and ranks that share units train as one rank does.
namespace terrace {
namespace {

struct AdapterChoice {
  const char* name;
  std::string_view family;
  bool tied;
  std::vector<std::string> patterns;
  bool is_stabilized = false;
  std::vector<std::string> whole = {};  // patterns of tensors of modules that train whole
  std::vector<LayerPattern<std::int64_t>> ranks = {};
};

const std::vector<AdapterChoice>& adapter_choices() {
  static const std::vector<AdapterChoice> kChoices = {
      {"all_of_llama", "llama", false, {}},
      {"queries_and_values", "llama", true, {"q_proj", "v_proj"}, true},
      {"all_of_gpt2", "gpt2", true, {}},
      {"all_of_phi3", "phi3", false, {}, true},
      {"layers_apart", "qwen3", false, {"model.layers.1.*", "model.layers.4.mlp.*"}},
      {"down_of_gemma2", "gemma2", true, {"down_proj", "gate_proj"}},
      {"c_attn", "gpt2", false, {"c_attn", "*.4.mlp.c_proj"}},
      {"key_of_granite", "granite", true, {"k_proj"}},
      {.name = "whole_tied_embedding",
       .family = "llama",
       .tied = true,
       .patterns = {"model.layers.3.*"},
       .whole = {"model.embed_tokens.weight", "*norm.weight"}},
      {.name = "whole_layers",
       .family = "qwen3",
       .tied = false,
       .patterns = {"q_proj", "gate_proj"},
       .whole = {"*.[14].mlp.up_proj.weight", "*.q_norm.weight", "lm_head.weight"},
       .ranks = {{"layers.[23].self_attn.q_proj", 3}, {"layers.4.*", 9}}},
  };
  return kChoices;
}

ModelRuntimeOptions base_options(const AdapterChoice& choice, DType type) {
  return tiny_options(tiny_model(choice.family, choice.tied, false), type);
}

ModelRuntimeOptions adapted_options(const AdapterChoice& choice, DType type) {
  ModelRuntimeOptions options = base_options(choice, type);
  AdapterOptions adapter = {
      .rank = 5, .alpha = 12, .is_rank_stabilized = choice.is_stabilized, .targets = {}};
  adapter.rank_patterns = choice.ranks;
  adapter.whole_modules = modules_that_match(options.model, choice.whole);
  options.model =
      with_adapter_sizes(with_adapter(options.model, adapter, choice.patterns), choice.name);
  return options;
}

class AdaptedSteps : public testing::TestWithParam<std::size_t> {
 protected:
  const AdapterChoice& choice() const { return adapter_choices().at(GetParam()); }
};

// B starts at zero, so the first loss is the model's, to the last bit.
TEST_P(AdaptedSteps, BeginWithTheModelsLoss) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const SwitchedRun adapted = result_of(adapted_options(choice(), type), 3);
    const SwitchedRun base = result_of(base_options(choice(), type), 1);
    EXPECT_EQ(adapted.curve.losses.front(), base.curve.losses.front());
    EXPECT_LT(adapted.curve.losses.back(), adapted.curve.losses.front());
  }
}

// The model stays as it was, except for its whole modules. Both matrices of every adapter change.
TEST_P(AdaptedSteps, ChangeTheAdaptersAlone) {
  const ModelRuntimeOptions options = adapted_options(choice(), DType::kF32);
  const SwitchedRun result = result_of(options, 3);
  int adapters = 0;
  for (const UnitLayout& unit : parameter_layout(options.model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      std::vector<float> initial(static_cast<std::size_t>(tensor.elements()));
      RandomState(1234).read(StateField::kMaster, unit, tensor.offset, initial);
      const std::vector<float> now = values_of(result, StateField::kMaster, unit, tensor);
      const bool is_whole = options.model.adapter.trains_whole(tensor.stored_name);
      EXPECT_EQ(now != initial, is_adapter(tensor.kind) || is_whole) << tensor.name;
      adapters += is_adapter(tensor.kind) ? 1 : 0;
    }
  }
  EXPECT_GT(adapters, 0);
}

// Tries clipping, which defers all updates, and no clipping. Each choice tries every second switch.
TEST_P(AdaptedSteps, KeepTheBitsWhateverTheSwitch) {
  for (const double max_grad_norm : {0.02, 0.0}) {
    ModelRuntimeOptions options =
        adapted_options(choice(), max_grad_norm > 0 ? DType::kBF16 : DType::kF32);
    options.optimizer.max_grad_norm = max_grad_norm;
    expect_bits_over_switches(options, GetParam() % 2);
  }
}

TEST_P(AdaptedSteps, ResumeWithTheSameBits) {
  ModelRuntimeOptions options = adapted_options(choice(), DType::kBF16);
  options.optimizer.max_grad_norm = 0.02;
  expect_resumed_bits(options);
}

// Tries data-parallel ranks at every stage, stages of a pipeline, and tensor-parallel ranks on one
// mesh.
TEST_P(AdaptedSteps, KeepTheBitsOverRanks) {
  ModelRuntimeOptions options = adapted_options(choice(), DType::kBF16);
  options.optimizer.max_grad_norm = 0.02;
  options.placement.micro_batches = 2;
  std::vector<MeshShape> shapes = {MeshShape{.data = 2}};
  if (GetParam() % 2 == 0) {
    shapes.push_back({.data = GetParam() % 4 == 0 ? 2 : 1, .tensor = 2});
  }
  for (const MeshShape& shape : shapes) expect_bits_over_ranks(options, shape, 2);
}

// Tensor-parallel ranks add other parts in another order. The bounds are as in
// tensor_ranks_test.cc; docs/numerics.md explains them.
TEST_P(AdaptedSteps, OfTensorParallelRanksAreThoseOfOneRank) {
  constexpr std::int64_t kComparedSteps = 6;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool shares_rows : {false, true}) {
      ModelRuntimeOptions options = adapted_options(choice(), type);
      options.sequence_parallel = shares_rows;
      options.placement.micro_batches = 2;
      const auto curve_of = [&](const MeshShape& shape) {
        Curve curve;
        on_ranks(options, shape, 0,
                 [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
                   engine.fill_state(RandomState(1234));
                   TrainedRun run;
                   train_steps(engine, own, 1, kComparedSteps, run);
                   if (world.rank() == 0) curve = run.curve;
                 });
        return curve;
      };
      const Curve one = curve_of({});
      const Curve shared = curve_of({.tensor = 2});
      SCOPED_TRACE(fmt::format("{} {}", name_of(type), shares_rows));
      const bool exact = type == DType::kF32;
      const auto first = [](const Curve& c) { return Curve{{c.losses[0]}, {c.norms[0]}}; };
      EXPECT_LT(distance(first(shared), first(one)).loss, exact ? 1e-7 : 2e-4);
      EXPECT_LT(distance(first(shared), first(one)).norm, exact ? 1e-6 : 1e-2);
      EXPECT_LT(distance(shared, one).loss, exact ? 1e-5 : 3e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, AdaptedSteps,
                         testing::Range(std::size_t{0}, adapter_choices().size()),
                         [](const auto& info) { return adapter_choices().at(info.param).name; });

// Ranks that share a layer cannot keep the trained vectors that decay does not apply to behind the
// matrices.
TEST(AdaptedRanks, ThatShareLayersRefuseTrainedBiases) {
  for (const auto& [family, pattern, vector] :
       {std::tuple{"gpt2", "*.c_fc.*", "transformer.h.0.mlp.c_fc.bias"},
        {"olmo2", "*.q_norm.weight", "model.layers.0.self_attn.q_norm.weight"}}) {
    const AdapterChoice choice = {
        .name = "", .family = family, .tied = false, .patterns = {}, .whole = {pattern}};
    ModelRuntimeOptions options = adapted_options(choice, DType::kF32);
    options.ranks.shape.tensor = 2;
    TERRACE_EXPECT_THROW_WITH(plan_model(options), ConfigError, vector);
  }
}

// --- costs --------------------------------------------------------------------------------------

// The flops of a step's products, two for each multiplication. The backward has the model's
// products without the gradients of its matrices, and four products for each adapter. Below the
// lowest adapted layer the backward computes nothing.
TEST(AdapterFlops, AreThoseOfTheProductsThatAreMade) {
  constexpr double kRows = 48;
  constexpr double kLinear = 2 * kRows * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176);
  constexpr double kAttention = 4 * kRows * 12 * 64;
  constexpr double kOfDown = 2 * kRows * 5 * (176 + 64);
  constexpr double kOfQuery = 2 * kRows * 5 * (64 + 64);
  const AdapterChoice down = {"", "llama", false, {"*.3.mlp.down_proj", "*.[45].*.q_proj"}};
  const StepModel model = step_model_of(adapted_options(down, DType::kF32));
  for (std::size_t u = 1; u < 4; ++u) {
    EXPECT_EQ(model.units[u].backward_flops, 0);
    EXPECT_TRUE(model.units[u].backward.empty());
    EXPECT_EQ(model.units[u].saved_bytes, 0U);
  }
  EXPECT_DOUBLE_EQ(model.units[3].forward_flops, kLinear + kAttention);
  EXPECT_DOUBLE_EQ(model.units[4].forward_flops, kLinear + kAttention + kOfDown);
  // The lowest adapter computes no gradient of its input, and nothing is computed for the layers
  // before it.
  EXPECT_DOUBLE_EQ(model.units[4].backward_flops, 2 * kOfDown - 2 * kRows * 5 * 176);
  EXPECT_DOUBLE_EQ(model.units[5].backward_flops, kLinear + 2 * kAttention + 2 * kOfQuery);
}

// The program has state, gradients and updates of adapters, and no such ops for anything else.
TEST(AdapterProgram, HasNoOpsOfTheModelsChunks) {
  ModelRuntimeOptions options = adapted_options(adapter_choices().front(), DType::kBF16);
  all_on(options, false, Tier::kNvme);
  options.ranks.shape.data = 2;
  options.zero_stage = 2;
  const TierPlan plan = plan_model(options);
  std::int64_t state = 0;
  for (const UnitLayout& unit : parameter_layout(options.model, 2))
    state += unit.trained_elements();
  std::int64_t updated = 0;
  for (const Op& op : plan.training.program.ops) {
    const bool is_update = op.kind == OpKind::kUpdate || op.kind == OpKind::kNormPartials;
    EXPECT_TRUE(!is_update || (op.unit > 0 && op.unit < plan.model.last_unit()));
    if (op.kind == OpKind::kNormPartials) {
      updated += static_cast<std::int64_t>(op.find(Role::kPartials)->size_bytes / sizeof(double)) *
                 kBlockElements;
    }
  }
  EXPECT_EQ(updated, state / 2);
  EXPECT_TRUE(verify(plan.training.program).empty());
}

}  // namespace
}  // namespace terrace
