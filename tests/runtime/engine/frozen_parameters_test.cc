#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/step/hazards.h"
#include "runtime/step/verify.h"
#include "tests/kernels/row_bits.h"
#include "tests/runtime/engine/step_switches.h"

// Steps in which some tensors train and the others are frozen. The tensors that train have the same
// bits as in a run that trains all of them, as far as these bits do not depend on what else trains.
// The frozen tensors are not touched. As everywhere, switches do not change bits.
namespace terrace {
namespace {

struct Choice {
  const char* name;
  std::string_view family;
  bool tied;
  std::vector<std::string> trainable;
};

// Sets of trained tensors: layers and parts of layers, high and low.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> kChoices = {
      {"two_layers", "llama", false, {"model.layers.4.*", "model.layers.5.*"}},
      {"two_layers_apart", "llama", true, {"model.layers.1.*", "model.layers.4.*"}},
      {"attention", "qwen3", false, {"*self_attn*"}},
      {"queries_and_values", "llama", false, {"*q_proj*", "*v_proj*"}},
      {"gates_and_a_bias", "qwen2", true, {"*.[1-4].mlp.gate_proj.*", "*.[25].*.k_proj.bias"}},
      {"down_of_one", "llama", false, {"*.3.mlp.down_proj.weight"}},
      {"norms", "gemma2", true, {"*norm*"}},
      {"norms_and_biases", "gpt2", true, {"*.bias", "*ln_?.weight"}},
      {"biases_of_one", "gpt2", false, {"h.2.mlp.c_proj.bias"}},
      {"positions", "gpt2", true, {"wpe.weight", "h.3.*"}},
      {"embedding", "llama", true, {"*embed_tokens*"}},
      {"embedding_alone", "olmo2", false, {"model.embed_tokens.weight"}},
      {"head", "llama", false, {"lm_head.weight"}},
      {"last_norm", "llama", true, {"model.norm.weight"}},
      {"scaled_branches", "granite", true, {"*.4.mlp.*", "*.5.self_attn.o_proj*"}},
  };
  return kChoices;
}

ModelRuntimeOptions options_for(const Choice& choice, DType type) {
  ModelRuntimeOptions options = tiny_options(tiny_model(choice.family, choice.tied, false), type);
  options.model.trainable = choice.trainable;
  return options;
}

class FrozenParameters : public testing::TestWithParam<std::size_t> {
 protected:
  const Choice& choice() const { return choices().at(GetParam()); }
};

struct Compared {
  StateField field;
  DType type;
};

// Expects equal bits where the product of some rows has the bits of these rows in the product of
// all rows. Elsewhere expects the moments to agree within some last places of the largest one, and
// does not compare the parameters: there a step depends on the signs of even the smallest
// gradients.
void expect_same(const std::vector<float>& got, const std::vector<float>& expected,
                 const Compared& compared) {
  if (test::rows_have_bits_of_whole(compared.type)) {
    EXPECT_EQ(got, expected);
    return;
  }
  if (compared.field == StateField::kMaster) return;
  ASSERT_EQ(got.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-6F * largest) << i;
  }
}

// The moments after a first step show what the gradients were. Without clipping no gradient depends
// on the norm of another.
TEST_P(FrozenParameters, LeaveTheGradientsOfTheOthersAsTheyAre) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    ModelRuntimeOptions options = options_for(choice(), type);
    options.optimizer.max_grad_norm = 0;
    ModelRuntimeOptions all = options;
    all.model.trainable.clear();
    const SwitchedRun frozen = result_of(options, 1);
    const SwitchedRun trained = result_of(all, 1);
    EXPECT_EQ(frozen.curve.losses, trained.curve.losses);
    EXPECT_LT(frozen.curve.norms.front(), trained.curve.norms.front());
    const std::vector<UnitLayout> layout = parameter_layout(options.model);
    const std::vector<UnitLayout> of_all = parameter_layout(all.model);
    int compared = 0;
    for (std::size_t u = 0; u < layout.size(); ++u) {
      for (const ParameterTensor& tensor : layout[u].tensors) {
        if (!tensor.trainable) continue;
        ++compared;
        for (const StateField field : kStateFields) {
          SCOPED_TRACE(tensor.name);
          expect_same(values_of(frozen, field, layout[u], tensor),
                      values_of(trained, field, of_all[u], *of_all[u].find(tensor.kind)),
                      {field, type});
        }
      }
    }
    EXPECT_GT(compared, 0);
  }
}

TEST_P(FrozenParameters, StayWhatTheyWere) {
  ModelRuntimeOptions options = options_for(choice(), DType::kBF16);
  all_on(options, false, Tier::kNvme);
  const TemporaryDirectory drive;
  options.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
  const SwitchedRun result = result_of(options, 3);
  int compared = 0;
  for (const UnitLayout& unit : parameter_layout(options.model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      std::vector<float> initial(static_cast<std::size_t>(tensor.elements()));
      RandomState(1234).read(StateField::kMaster, unit, tensor.offset, initial);
      if (!tensor.trainable) {
        for (float& value : initial) value = to_float(to_parameter<Bf16>(value));
      }
      const std::vector<float> now = values_of(result, StateField::kMaster, unit, tensor);
      EXPECT_EQ(now == initial, !tensor.trainable) << tensor.name;
      if (!tensor.trainable) ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

// Tries clipping, which defers all updates, and no clipping. Each choice tries every second switch.
TEST_P(FrozenParameters, KeepTheBitsWhateverTheSwitch) {
  for (const double max_grad_norm : {0.05, 0.0}) {
    ModelRuntimeOptions options =
        options_for(choice(), max_grad_norm > 0 ? DType::kBF16 : DType::kF32);
    options.optimizer.max_grad_norm = max_grad_norm;
    expect_bits_over_switches(options, GetParam() % 2);
  }
}

TEST_P(FrozenParameters, ResumeWithTheSameBits) {
  ModelRuntimeOptions options = options_for(choice(), DType::kBF16);
  options.optimizer.max_grad_norm = 0.05;
  expect_resumed_bits(options);
}

// Tries ranks, ZeRO stages and places; pipelines; and, for every second choice, ranks that share
// units.
TEST_P(FrozenParameters, KeepTheBitsOverRanks) {
  ModelRuntimeOptions options = options_for(choice(), DType::kBF16);
  options.optimizer.max_grad_norm = 0.05;
  options.placement.micro_batches = 2;
  const MeshShape shared = {.data = GetParam() % 4 == 0 ? 2 : 1, .tensor = 2};
  std::vector<MeshShape> shapes = {MeshShape{.data = 2}};
  if (GetParam() % 2 == 0) shapes.push_back(shared);
  for (const MeshShape& shape : shapes) expect_bits_over_ranks(options, shape, 3);
}

INSTANTIATE_TEST_SUITE_P(Choices, FrozenParameters,
                         testing::Range(std::size_t{0}, choices().size()),
                         [](const auto& info) { return choices().at(info.param).name; });

// --- work that is left out ----------------------------------------------------------------------

StepModel model_with(std::string_view family, const std::vector<std::string>& trainable) {
  Choice choice = {"", family, false, trainable};
  return step_model_of(options_for(choice, DType::kF32));
}

// The flops of a block's products in the model, two for each multiplication: the products of the
// layer's matrices, and the products of attention, where a query sees half of the keys.
constexpr double kRows = 48;
constexpr double kLinear = 2 * kRows * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176);
constexpr double kAttention = 4 * kRows * 12 * 64;
constexpr double kHead = 2 * kRows * 64 * 256;

TEST(FrozenFlops, AreThoseOfTheProductsThatAreLeft) {
  const StepModel all = model_with("llama", {});
  for (std::size_t u = 1; u <= 6; ++u) {
    EXPECT_DOUBLE_EQ(all.units[u].backward_flops, 2 * kLinear + 2 * kAttention);
  }
  const StepModel top = model_with("llama", {"model.layers.3.*", "model.layers.5.*"});
  for (std::size_t u = 1; u < 4; ++u) {
    EXPECT_EQ(top.units[u].backward_flops, 0);
    EXPECT_TRUE(top.units[u].backward.empty());
    EXPECT_TRUE(top.units[u].recompute.empty());
    EXPECT_EQ(top.units[u].saved_bytes, 0U);
    EXPECT_EQ(top.units[u].forward_flops, all.units[u].forward_flops);
  }
  // A unit computes all gradients, or only the gradients of its input. The lowest trained norm also
  // needs the input gradient of the product that follows it.
  EXPECT_DOUBLE_EQ(top.units[4].backward_flops, 2 * kLinear + 2 * kAttention);
  EXPECT_DOUBLE_EQ(top.units[5].backward_flops, kLinear + 2 * kAttention);
  EXPECT_DOUBLE_EQ(top.units[6].backward_flops, 2 * kLinear + 2 * kAttention);
  EXPECT_DOUBLE_EQ(top.units[7].backward_flops, 2 * kHead);
  EXPECT_DOUBLE_EQ(all.units[7].backward_flops, 3 * kHead);
}

TEST(FrozenFlops, AreNoneBelowTheLowestTensor) {
  const StepModel matrices = model_with("llama", {"model.layers.3.*_proj.weight"});
  const double first = 2 * kRows * 64 * (64 + 2 * 32);
  EXPECT_DOUBLE_EQ(matrices.units[4].backward_flops, 2 * kLinear - first + 2 * kAttention);
  const StepModel down = model_with("llama", {"*.4.mlp.down_proj.weight"});
  EXPECT_DOUBLE_EQ(down.units[5].backward_flops, 2 * kRows * 64 * 176);
  const StepModel key = model_with("llama", {"*.4.self_attn.k_proj.weight"});
  EXPECT_DOUBLE_EQ(key.units[5].backward_flops,
                   kLinear + 2 * kAttention - 2 * kRows * 64 * 128 + 2 * kRows * 64 * 32);
  const StepModel norm = model_with("llama", {"model.norm.weight"});
  EXPECT_DOUBLE_EQ(norm.units[7].backward_flops, 2 * kHead);
  const StepModel bias = model_with("gpt2", {"h.5.mlp.c_proj.bias"});
  EXPECT_EQ(bias.units[6].backward_flops, 0);
}

TEST(FrozenFlops, OfMaskedHalvesAreThoseOfTheAttentionThatRuns) {
  const double half = 2 * kRows * 24 * 64;
  const StepModel top = model_with("llama", {"model.layers.4.*"});
  EXPECT_DOUBLE_EQ(top.units[4].masked_flops, half);
  EXPECT_DOUBLE_EQ(top.units[5].masked_flops, 3 * half);
  EXPECT_DOUBLE_EQ(top.units[6].masked_flops, 3 * half);
}

// In a step only the computation touches frozen tensors, and nothing writes them.
TEST(FrozenProgram, HasNoOpsOfFrozenChunks) {
  ModelRuntimeOptions options = options_for(choices().front(), DType::kBF16);
  all_on(options, false, Tier::kNvme);
  options.ranks.shape.data = 2;
  options.zero_stage = 2;
  const TierPlan plan = plan_model(options);
  const StepModel& model = plan.model;
  std::int64_t blocks = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    blocks += model.groups[static_cast<std::size_t>(u)].trained_elements() / kBlockElements;
  }
  std::int64_t partials = 0;
  std::map<OpKind, int> ops;
  for (const Op& op : plan.training.program.ops) {
    ++ops[op.kind];
    if (op.unit < 0) continue;
    const bool trains = op.unit == 5 || op.unit == 6;
    const bool changes = op.kind == OpKind::kUpdate || op.kind == OpKind::kNormPartials ||
                         op.kind == OpKind::kReduceScatter || op.lane == Lane::kWrite;
    EXPECT_TRUE(trains || !changes || op.account == Account::kActivations) << op.unit;
    EXPECT_TRUE(op.unit >= 5 || op.kind != OpKind::kBackward) << op.unit;
    if (op.kind == OpKind::kNormPartials) {
      partials += static_cast<std::int64_t>(op.find(Role::kPartials)->size_bytes / sizeof(double));
    }
    for (const Access& access : op.writes) EXPECT_TRUE(access.role != Role::kGradient || trains);
  }
  EXPECT_EQ(partials, blocks / 2);  // of this rank's parts
  for (const Buffer& buffer : plan.training.program.buffers) {
    const bool is_state =
        buffer.account == Account::kOptimizerState || buffer.account == Account::kGradients;
    const bool is_home =
        buffer.key.kind == BufferKind::kState || buffer.key.kind == BufferKind::kGradients;
    EXPECT_TRUE(!is_state || !is_home || buffer.key.owner >= 5) << buffer.name;
  }
}

// Removes one of the loads of frozen chunks from a program. verify() must find that the forward
// then reads a chunk that no op has loaded, or what another buffer left there.
TEST(FrozenProgram, IsWrongWithoutALoadOfAFrozenChunk) {
  for (const bool clips : {true, false}) {
    ModelRuntimeOptions options = options_for(choices().front(), DType::kBF16);
    options.model.trainable = {"*mlp*"};
    options.optimizer.max_grad_norm = clips ? 1.0 : 0.0;
    all_on(options, true, Tier::kNvme);
    options.evaluates = false;
    const TierPlan plan = plan_model(options);
    int found = 0;
    for (std::size_t i = 0; i < plan.training.program.ops.size(); ++i) {
      const Op& op = plan.training.program.ops[i];
      const bool is_frozen = op.lane == Lane::kRead && op.account == Account::kParameters &&
                             op.unit == 2 && op.chunk >= plan.model.trained_chunks(2);
      if (!is_frozen) continue;
      ++found;
      Program wrong = plan.training.program;
      wrong.ops.erase(wrong.ops.begin() + static_cast<std::ptrdiff_t>(i));
      add_edges(wrong);
      EXPECT_FALSE(verify(wrong).empty()) << describe(plan.training.program, op);
    }
    EXPECT_GT(found, 0);
  }
}

}  // namespace
}  // namespace terrace
