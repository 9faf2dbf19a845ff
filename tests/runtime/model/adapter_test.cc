#include "runtime/model/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_patterns.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/decoder_units.h"
#include "runtime/model/parameter_init.h"
#include "runtime/model/trainable.h"
#include "tests/runtime/model/block_run.h"
#include "tests/runtime/model/random_block.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// Adapters in the layers of a block: their parameters, the block's results and the gradients,
// compared with a block whose matrices have the adapters merged in.
namespace terrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr BatchShape kRows = {2, 6};
constexpr std::int64_t kRank = 3;

ModelConfig plain_model(std::string_view family) {
  return small_model(
      family,
      {.layers = 2, .width = 32, .head_width = 8, .intermediate = 48, .bias = family == "llama"});
}

ModelConfig adapted_model(std::string_view family,
                          const std::vector<std::string>& patterns = std::vector<std::string>(),
                          bool is_stabilized = false) {
  return with_adapter(
      plain_model(family),
      {.rank = kRank, .alpha = 5, .is_rank_stabilized = is_stabilized, .targets = {}}, patterns);
}

std::vector<float> random_rows(const ModelConfig& config, std::uint32_t seed) {
  return random_numbers(static_cast<std::size_t>(kRows.rows() * config.width), seed, 1.0F);
}

std::span<const float> part(std::span<const float> values, const ParameterTensor& tensor) {
  return values.subspan(static_cast<std::size_t>(tensor.offset),
                        static_cast<std::size_t>(tensor.elements()));
}

// Returns the A of a weight: the A of the first weight with the same stored name.
const ParameterTensor& a_of(const UnitLayout& block, const ParameterTensor& weight) {
  for (const ParameterTensor& other : block.tensors) {
    if (other.stored_name == weight.stored_name) return *block.find(adapter_a(other.kind));
  }
  TERRACE_CHECK(false);
}

// Returns the same block without an adapter. Its matrices are W + s B A.
std::vector<float> merged_block(const ModelConfig& adapted, const ModelConfig& plain,
                                std::span<const float> values) {
  const UnitLayout source = parameter_layout(adapted).at(1);
  const UnitLayout target = parameter_layout(plain).at(1);
  std::vector<float> merged(static_cast<std::size_t>(target.padded_elements));
  for (const ParameterTensor& tensor : target.tensors) {
    const std::span<const float> base = part(values, *source.find(tensor.kind));
    std::ranges::copy(base, merged.begin() + tensor.offset);
    if (!is_layer_weight(tensor.kind) || source.find(adapter_b(tensor.kind)) == nullptr) continue;
    const std::int64_t rank = a_of(source, tensor).rows;
    const std::span<const float> a = part(values, a_of(source, tensor));
    const std::span<const float> b = part(values, *source.find(adapter_b(tensor.kind)));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < rank; ++k) {
        sum += static_cast<double>(b[i / tensor.columns * rank + k]) *
               a[k * tensor.columns + i % tensor.columns];
      }
      merged[tensor.offset + i] +=
          static_cast<float>(adapted.adapter.scale_of(tensor.stored_name) * sum);
    }
  }
  return merged;
}

void expect_close(std::span<const float> values, std::span<const float> wanted,
                  const std::string& what) {
  ASSERT_EQ(values.size(), wanted.size());
  double apart = 0;
  double size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    apart += (values[i] - wanted[i]) * (values[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  // Allows some hundred fp32 roundings, few of which have the same sign.
  EXPECT_LE(std::sqrt(apart), 2e-5 * std::sqrt(size)) << what;
  EXPECT_GT(size, 0) << what;
}

// The gradients dA = s B^T dW and dB = s dW A^T, where dW is the gradient of the whole matrix.
// Weights that are stored as one all add to the same dA.
struct AdapterGradients {
  std::map<ParameterKind, std::vector<float>> of_kind;
};

AdapterGradients wanted_gradients(const ModelConfig& adapted, const ModelConfig& plain,
                                  std::span<const float> values, const BlockRun& dense) {
  const UnitLayout block = parameter_layout(adapted).at(1);
  const UnitLayout of_plain = parameter_layout(plain).at(1);
  AdapterGradients gradients;
  for (const ParameterTensor& tensor : of_plain.tensors) {
    if (!is_layer_weight(tensor.kind)) continue;
    const ParameterTensor* const up = block.find(adapter_b(tensor.kind));
    if (up == nullptr) continue;
    const ParameterTensor& down = a_of(block, tensor);
    const std::span<const float> a = part(values, down);
    const std::span<const float> b = part(values, *up);
    const std::vector<float> dw = dense.gradient_of(tensor.kind);
    std::vector<float>& da = gradients.of_kind[down.kind];
    std::vector<float>& db = gradients.of_kind[up->kind];
    da.resize(a.size());
    db.resize(b.size());
    const std::int64_t rank = down.rows;
    const float s = adapted.adapter.scale_of(tensor.stored_name);
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const std::int64_t row = i / tensor.columns;
      const std::int64_t column = i % tensor.columns;
      for (std::int64_t k = 0; k < rank; ++k) {
        da[k * tensor.columns + column] += s * b[row * rank + k] * dw[i];
        db[row * rank + k] += s * dw[i] * a[k * tensor.columns + column];
      }
    }
  }
  return gradients;
}

class Adapters : public testing::TestWithParam<const char*> {};

// Returns patterns that match some layers, and all.
const std::vector<std::vector<std::string>>& patterns_of(std::string_view family) {
  static const std::vector<std::vector<std::string>> kUsual = {{}, {"k_proj", "down_proj"}};
  static const std::vector<std::vector<std::string>> kGpt2 = {{}, {"c_attn"}};
  static const std::vector<std::vector<std::string>> kPhi3 = {{}, {"qkv_proj", "o_proj"}};
  if (family == "gpt2") return kGpt2;
  return family == "phi3" ? kPhi3 : kUsual;
}

// Expects that a block has the results and the gradients of a block whose matrices have the
// adapters merged in.
void expect_as_merged(const ModelConfig& config, const ModelConfig& plain) {
  const std::vector<float> values = random_block(config);
  BlockRun dense(plain, {kRows}, merged_block(config, plain, values));
  const std::vector<float> x = random_rows(config, 5);
  const std::vector<float> dy = random_rows(config, 6);
  const std::vector<float> y = dense.forward(x);
  dense.backward(dy);
  const AdapterGradients wanted = wanted_gradients(config, plain, values, dense);
  EXPECT_FALSE(wanted.of_kind.empty());
  for (const BlockRun::Setting& setting :
       {BlockRun::Setting{kRows}, BlockRun::Setting{kRows, 2, false},
        BlockRun::Setting{kRows, 2, true}}) {
    const std::string what = fmt::format("{} ranks", setting.ranks);
    BlockRun run(config, setting, values);
    expect_close(run.forward(x), y, what);
    // Nothing before the block trains, so the gradient ends at its adapters.
    run.backward(dy);
    for (const auto& [kind, gradient] : wanted.of_kind) {
      expect_close(run.whole_gradient_of(kind), gradient,
                   fmt::format("{}, kind {}", what, static_cast<int>(kind)));
    }
  }
}

TEST_P(Adapters, ComputeAsMatricesThatHaveThem) {
  const ModelConfig plain = plain_model(GetParam());
  for (const std::vector<std::string>& patterns : patterns_of(GetParam())) {
    for (const bool is_stabilized : {false, true}) {
      expect_as_merged(adapted_model(GetParam(), patterns, is_stabilized), plain);
    }
  }
}

// Some layers have another rank or another alpha than the others, or both.
TEST_P(Adapters, OfSeveralSizesComputeAsMatricesThatHaveThem) {
  ModelConfig config = adapted_model(GetParam());
  config.adapter.rank_patterns = {{"(self_)?attn.(c_attn|qkv_proj|q_proj|o_proj)", 5},
                                  {".*proj", 2}};
  config.adapter.alpha_patterns = {{"k_proj|qkv_proj|o_proj|c_proj|down_proj", 11}};
  config = with_adapter_sizes(std::move(config), "test");
  EXPECT_GE(config.adapter.sizes.size(), 4U);
  expect_as_merged(config, plain_model(GetParam()));
}

// The second block's input gradient goes on to the adapters of the first.
TEST_P(Adapters, PassTheGradientOn) {
  const ModelConfig plain = plain_model(GetParam());
  const ModelConfig config = adapted_model(GetParam());
  const std::vector<float> values = random_block(config);
  BlockRun dense(plain, {kRows}, merged_block(config, plain, values), 2);
  const std::vector<float> x = random_rows(config, 5);
  const std::vector<float> dy = random_rows(config, 6);
  dense.forward(x);
  const std::vector<float> dx = dense.backward(dy);
  for (const bool shares_rows : {false, true}) {
    BlockRun one(config, {kRows}, values, 2);
    one.forward(x);
    expect_close(one.backward(dy), dx, "one rank");
    BlockRun two(config, {kRows, 2, shares_rows}, values, 2);
    two.forward(x);
    expect_close(two.backward(dy), dx, "two ranks");
  }
}

// B is zero at the start, so the block computes bit for bit what it computes without adapters.
TEST_P(Adapters, ChangeNothingAtTheStart) {
  const ModelConfig plain = plain_model(GetParam());
  const ModelConfig config = adapted_model(GetParam());
  const UnitLayout block = parameter_layout(config).at(1);
  const UnitLayout of_plain = parameter_layout(plain).at(1);
  std::vector<float> values(static_cast<std::size_t>(block.padded_elements));
  std::vector<float> base(static_cast<std::size_t>(of_plain.padded_elements));
  const auto fill = [](const ParameterTensor& tensor, std::vector<float>& all) {
    init_parameter(tensor, 7, 0, std::span(all).subspan(tensor.offset, tensor.elements()));
  };
  for (const ParameterTensor& tensor : block.tensors) fill(tensor, values);
  for (const ParameterTensor& tensor : of_plain.tensors) fill(tensor, base);
  BlockRun adapted(config, {kRows}, values);
  BlockRun unadapted(plain, {kRows}, base);
  const std::vector<float> x = random_rows(config, 5);
  EXPECT_EQ(adapted.forward(x), unadapted.forward(x));
}

INSTANTIATE_TEST_SUITE_P(Families, Adapters,
                         testing::Values("llama", "gpt2", "phi3", "qwen2", "qwen3", "mistral",
                                         "gemma2", "gemma3_text", "olmo2", "granite", "smollm3"),
                         [](const auto& info) { return std::string(info.param); });

// --- parameters ---------------------------------------------------------------------------------

std::vector<std::string> trained_names(const UnitLayout& unit) {
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : unit.tensors) {
    if (tensor.trainable) names.push_back(tensor.stored_name);
  }
  return names;
}

TEST(AdapterLayout, HasNamesAsPeftHas) {
  const ModelConfig llama = adapted_model("llama", {"q_proj", "down_proj"});
  const std::string layer = "base_model.model.model.layers.0.";
  EXPECT_THAT(
      trained_names(parameter_layout(llama)[1]),
      ElementsAre(layer + "self_attn.q_proj.lora_A.weight", layer + "mlp.down_proj.lora_A.weight",
                  layer + "self_attn.q_proj.lora_B.weight", layer + "mlp.down_proj.lora_B.weight"));
  const ModelConfig gpt2 = adapted_model("gpt2", {"c_attn"});
  const UnitLayout block = parameter_layout(gpt2)[2];
  const std::string h = "base_model.model.transformer.h.1.attn.c_attn.";
  EXPECT_THAT(trained_names(block), ElementsAre(h + "lora_A.weight", h + "lora_B.weight"));
  const ParameterTensor& b = *block.find(ParameterKind::kQueryB);
  EXPECT_EQ(b.rows, 96);
  EXPECT_EQ(b.columns, kRank);
  EXPECT_FALSE(b.stored_transposed);
  EXPECT_TRUE(block.find(ParameterKind::kQuery)->stored_transposed);
}

TEST(AdapterLayout, HasOneAForWeightsThatAreStoredAsOne) {
  const UnitLayout block = parameter_layout(adapted_model("phi3", {"qkv_proj", "gate_up_proj"}))[1];
  using enum ParameterKind;
  const std::string qkv = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
  EXPECT_EQ(block.find(kQueryA)->stored_name, qkv + "A.weight");
  EXPECT_EQ(block.find(kKeyA), nullptr);
  EXPECT_EQ(block.find(kUpA), nullptr);
  std::int64_t first = 0;
  for (const ParameterKind kind : {kQueryB, kKeyB, kValueB}) {
    const ParameterTensor& b = *block.find(kind);
    EXPECT_EQ(b.stored_name, qkv + "B.weight");
    EXPECT_EQ(b.stored_first_row, first);
    EXPECT_EQ(b.stored_rows, 64);
    first += b.rows;
  }
}

// Only A and B train. They decay as matrices do, and start from random numbers of their own.
TEST(AdapterLayout, LeavesTheModelAsItIs) {
  for (const char* family : {"llama", "gpt2", "phi3"}) {
    const std::vector<UnitLayout> plain = parameter_layout(plain_model(family));
    const std::vector<UnitLayout> adapted = parameter_layout(adapted_model(family));
    std::set<std::uint32_t> streams;
    std::size_t tensors = 0;
    for (std::size_t u = 0; u < adapted.size(); ++u) {
      EXPECT_EQ(adapted[u].trains(), u == 1 || u == 2);
      for (const ParameterTensor& tensor : adapted[u].tensors) {
        ++tensors;
        streams.insert(tensor.random_stream);
        EXPECT_EQ(tensor.trainable, is_adapter(tensor.kind));
        if (is_adapter(tensor.kind)) {
          EXPECT_TRUE(tensor.decay);
          continue;
        }
        const ParameterTensor& same = *plain[u].find(tensor.kind);
        EXPECT_EQ(tensor.name, same.name);
        EXPECT_EQ(tensor.random_stream, same.random_stream);
      }
    }
    EXPECT_EQ(streams.size(), tensors);
  }
}

// The numbers are as from torch's kaiming_uniform_ with a = sqrt(5): within one divided by the root
// of the number of inputs.
TEST(AdapterLayout, StartsFromUniformNumbersAndZero) {
  const UnitLayout block = parameter_layout(adapted_model("llama"))[1];
  const auto start = [&](ParameterKind kind) {
    const ParameterTensor& tensor = *block.find(kind);
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    init_parameter(tensor, 11, 0, values);
    return values;
  };
  const std::vector<float> a = start(ParameterKind::kDownA);  // of 48 inputs
  const float bound = 1.0F / std::sqrt(48.0F);
  double squares = 0;
  for (const float value : a) {
    EXPECT_GE(value, -bound);
    EXPECT_LT(value, bound);
    squares += value * value;
  }
  EXPECT_GT(*std::ranges::max_element(a), 0.9F * bound);
  EXPECT_LT(*std::ranges::min_element(a), -0.9F * bound);
  EXPECT_NEAR(squares / static_cast<double>(a.size()), bound * bound / 3, 0.15 * bound * bound);
  EXPECT_NE(a, start(ParameterKind::kProjectionA));
  for (const float value : start(ParameterKind::kDownB)) EXPECT_EQ(value, 0.0F);
  // Any cutting into pieces gives the same bits.
  std::vector<float> piece(5);
  init_parameter(*block.find(ParameterKind::kDownA), 11, 7, piece);
  EXPECT_TRUE(std::ranges::equal(piece, std::span(a).subspan(7, 5)));
}

// --- targets ------------------------------------------------------------------------------------

TEST(AdapterTargets, AreNamedByTheirEndsWhereTheseSuffice) {
  EXPECT_THAT(
      adapted_model("llama").adapter.targets,
      ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(adapted_model("gpt2").adapter.targets, ElementsAre("c_attn", "c_fc", "c_proj"));
  EXPECT_THAT(adapted_model("phi3", {"*qkv*"}).adapter.targets, ElementsAre("qkv_proj"));
  EXPECT_THAT(adapted_model("gpt2", {"attn.c_proj"}).adapter.targets,
              ElementsAre("transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"));
  EXPECT_THAT(adapted_model("llama", {"model.layers.1.*.[qv]_proj.weight"}).adapter.targets,
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(adapted_model("gpt2", {"h.1.mlp.c_fc"}).adapter.targets,
              ElementsAre("transformer.h.1.mlp.c_fc"));
}

TEST(AdapterTargets, ThatAreNoLayersAreRefused) {
  for (const char* pattern : {"qproj", "lm_head", "embed_tokens", "norm", "model.layers.2.*"}) {
    try {
      adapted_model("llama", {"q_proj", pattern});
      FAIL() << pattern;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("--lora-targets ") + pattern));
      EXPECT_THAT(error.what(), HasSubstr("k_proj"));
    }
  }
}

// The last parts of names would match the experts, too, so they are not enough for qwen3_moe. The
// second layer of that model has no experts.
TEST(AdapterTargets, AreNoExperts) {
  EXPECT_THAT(adapted_model("mixtral").adapter.targets,
              ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
  EXPECT_EQ(adapted_model("mixtral", {"all-linear"}), adapted_model("mixtral"));
  EXPECT_EQ(adapted_model("llama", {"all-linear"}), adapted_model("llama"));
  EXPECT_THAT(adapted_model("qwen3_moe").adapter.targets,
              ::testing::AllOf(Contains("model.layers.0.self_attn.q_proj"),
                               Contains("model.layers.1.mlp.gate_proj"),
                               Not(Contains(HasSubstr("expert")))));
  EXPECT_THAT(adapted_model("qwen3_moe", {"mlp.up_proj"}).adapter.targets,
              ElementsAre("model.layers.1.mlp.up_proj"));
  for (const UnitLayout& unit : parameter_layout(adapted_model("qwen3_moe"))) {
    EXPECT_FALSE(unit.experts.train);
    for (const ParameterTensor& tensor : unit.tensors) {
      EXPECT_EQ(tensor.trainable, is_adapter(tensor.kind)) << tensor.name;
    }
  }
}

TEST(AdapterTargets, ThatNameExpertsAreRefusedWithWhatCanBeNamed) {
  const auto refusal = [](const char* family, const char* pattern) -> std::string {
    try {
      adapted_model(family, {"q_proj", pattern});
    } catch (const ConfigError& error) {
      return std::string(error.what()) + " " + error.remedy();
    }
    return "";
  };
  for (const char* pattern : {"w1", "*experts*", "block_sparse_moe.gate", "*"}) {
    EXPECT_THAT(refusal("mixtral", pattern),
                ::testing::AllOf(HasSubstr(std::string("--lora-targets ") + pattern),
                                 HasSubstr("block_sparse_moe."),
                                 HasSubstr("k_proj, o_proj, q_proj, v_proj")))
        << pattern;
  }
  for (const char* pattern : {"gate_proj", "mlp.gate", "*.down_proj"}) {
    EXPECT_THAT(refusal("qwen3_moe", pattern),
                ::testing::AllOf(HasSubstr(std::string("--lora-targets ") + pattern),
                                 HasSubstr("mlp.down_proj, mlp.gate_proj, mlp.up_proj")))
        << pattern;
  }
  AdapterOptions whole = {.rank = 4, .alpha = 8, .targets = {}};
  whole.whole_modules = {"experts.2.w1"};
  TERRACE_EXPECT_THROW_WITH(with_adapter(small_model("mixtral", {}), whole, {}), ConfigError,
                            "experts.2.w1");
}

// The expected answers are those of PEFT's get_pattern_key().
TEST(AdapterPatterns, MatchTheEndsOfNamesAfterDots) {
  const char* const name = "model.layers.10.self_attn.q_proj";
  const auto matches = [&](const std::string& pattern) {
    AdapterOptions options = {.rank = 4, .alpha = 8, .targets = {}};
    options.rank_patterns = {{pattern, 7}};
    return AdapterPatterns(options, "test").size_of(name) == AdapterSize{7, 8};
  };
  for (const char* pattern :
       {"q_proj", "k_proj|q_proj", ".*_proj", "self_attn.q_proj", "layers.10.self_attn.q_proj",
        R"(layers\.\d+\.self_attn\.q_proj)", "model.layers.10.self_attn.q_proj",
        "^model.layers.10.self_attn.q_proj", "^model.*q_proj", "(?P<name>q)_proj"}) {
    EXPECT_TRUE(matches(pattern)) << pattern;
  }
  for (const char* pattern : {"proj", "attn.q_proj", "q_pro", "self_attn", "^q_proj",
                              "layers.1.self_attn.q_proj", "decoder.model.*"}) {
    EXPECT_FALSE(matches(pattern)) << pattern;
  }
}

TEST(AdapterPatterns, TheFirstThatMatchesCounts) {
  AdapterOptions options = {.rank = 4, .alpha = 8, .targets = {}};
  options.rank_patterns = {{"layers.0.*", 2}, {"q_proj", 6}};
  options.alpha_patterns = {{"k_proj", 1}, {"layers.0.*", 3}};
  const AdapterPatterns patterns(options, "test");
  EXPECT_EQ(patterns.size_of("model.layers.0.self_attn.q_proj"), (AdapterSize{2, 3}));
  EXPECT_EQ(patterns.size_of("model.layers.0.self_attn.k_proj"), (AdapterSize{2, 1}));
  EXPECT_EQ(patterns.size_of("model.layers.1.self_attn.q_proj"), (AdapterSize{6, 8}));
  EXPECT_EQ(patterns.size_of("model.layers.1.self_attn.v_proj"), std::nullopt);
}

TEST(AdapterPatterns, ThatDoNotCompileAreRefused) {
  AdapterOptions options = {.rank = 4, .alpha = 8, .targets = {}};
  options.alpha_patterns = {{"(q_proj", 1}};
  TERRACE_EXPECT_THROW_WITH(AdapterPatterns(options, "a/adapter_config.json"), ConfigError,
                            "a/adapter_config.json: alpha_pattern \"(q_proj\"");
}

// Blocks whose layouts have the same kinds of tensors at the same places differ if their scales do.
TEST(AdapterLayout, TellsBlocksOfAnotherScaleApart) {
  ModelConfig config = adapted_model("llama");
  const auto are_equal = [&] {
    const std::vector<UnitLayout> layout = parameter_layout(config);
    const BlockShape first = {config.layer(0), layout.data() + 1, true};
    return first == BlockShape{config.layer(1), layout.data() + 2, true};
  };
  EXPECT_TRUE(are_equal());
  config.adapter.alpha_patterns = {{"layers.1.*.q_proj", 9}};
  config = with_adapter_sizes(std::move(config), "test");
  EXPECT_FALSE(are_equal());
}

// --- whole modules ------------------------------------------------------------------------------

// An entry covers a module whose name it ends, and everything in it. It need not begin after a dot:
// PEFT's _set_trainable() calls key.endswith(entry).
TEST(WholeModules, AreThoseThatPeftTrains) {
  AdapterOptions options;
  options.whole_modules = {"lm_head", "norm", "layers.1.mlp"};
  for (const char* name :
       {"lm_head.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.bias"}) {
    EXPECT_TRUE(options.trains_whole(name)) << name;
  }
  for (const char* name : {"model.layers.11.mlp.up_proj.weight", "model.embed_tokens.weight",
                           "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_FALSE(options.trains_whole(name)) << name;
  }
}

TEST(WholeModules, AreNamedByEndsThatFitNoOtherModule) {
  const ModelConfig llama = plain_model("llama");
  const auto modules = [&](const std::vector<std::string>& patterns) {
    return modules_that_match(llama, patterns);
  };
  EXPECT_THAT(modules({}), ElementsAre());
  EXPECT_THAT(modules({"lm_head.weight", "embed_tokens.weight"}),
              ElementsAre("embed_tokens", "lm_head"));
  EXPECT_THAT(modules({"norm.weight"}), ElementsAre("model.norm"));
  EXPECT_THAT(modules({"*norm.weight"}),
              ElementsAre("input_layernorm", "norm", "post_attention_layernorm"));
  EXPECT_THAT(modules({"*.1.mlp.up_proj.*"}), ElementsAre("model.layers.1.mlp.up_proj"));
  EXPECT_THAT(modules({"*.up_proj.*", "*.0.input_layernorm.weight"}),
              ElementsAre("model.layers.0.input_layernorm", "up_proj"));
}

TEST(WholeModules, IncludeATiedHead) {
  for (const char* family : {"llama", "gpt2"}) {
    const ModelConfig tied =
        small_model(family, {.width = 32, .head_width = 8, .intermediate = 48, .tied = true});
    const std::string embedding = stored_embedding_name(tied);
    ModelConfig adapted = with_adapter(tied, {.rank = 2, .alpha = 4, .targets = {}}, {});
    adapted.adapter.whole_modules = modules_that_match(tied, {embedding});
    EXPECT_EQ(adapted.adapter.whole_modules.size(), 2U);
    EXPECT_EQ(std::ranges::count(adapted.adapter.whole_modules, "lm_head"), 1);
    EXPECT_TRUE(has_whole_tied_head(adapted));
    EXPECT_THAT(whole_tensors(adapted), ElementsAre(embedding));
  }
}

TEST(WholeModules, AreRefusedInParts) {
  const ModelConfig llama = plain_model("llama");
  TERRACE_EXPECT_THROW_WITH(modules_that_match(llama, {"*.1.self_attn.q_proj.weight"}), ConfigError,
                            "model.layers.1.self_attn.q_proj.weight but not "
                            "model.layers.1.self_attn.q_proj.bias");
  TERRACE_EXPECT_THROW_WITH(modules_that_match(llama, {"lm_heads"}), ConfigError,
                            "matches no tensor");
  // The module of the sinks is the attention, with all its layers.
  TERRACE_EXPECT_THROW_WITH(modules_that_match(small_model("gpt_oss", {}), {"*.1.self_attn.sinks"}),
                            ConfigError,
                            "model.layers.1.self_attn.sinks but not model.layers.1.self_attn.");
}

TEST(WholeModules, HaveNoAdapters) {
  const ModelConfig llama = plain_model("llama");
  AdapterOptions adapter = {.rank = 2, .alpha = 4, .targets = {}};
  adapter.whole_modules = modules_that_match(llama, {"*.down_proj.*"});
  const ModelConfig config = with_adapter(llama, adapter, {});
  EXPECT_FALSE(config.adapter.has_target("model.layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(config.adapter.has_target("model.layers.0.mlp.up_proj.weight"));
  EXPECT_TRUE(is_trainable(config, "model.layers.0.mlp.down_proj.weight"));
  EXPECT_FALSE(is_trainable(config, "model.layers.0.mlp.up_proj.weight"));
  TERRACE_EXPECT_THROW_WITH(with_adapter(llama, adapter, {"down_proj"}), ConfigError,
                            "--lora-targets down_proj matches model.layers.0.mlp.down_proj");
  adapter.whole_modules = modules_that_match(llama, {"*_proj.*"});
  TERRACE_EXPECT_THROW_WITH(with_adapter(llama, adapter, {}), ConfigError,
                            "the adapter has no layer");
}

TEST(AdapterScale, IsAlphaByTheRankOrItsRoot) {
  AdapterOptions options = {.rank = 16, .alpha = 8, .targets = {}};
  options.sizes["model.layers.0.mlp.up_proj"] = {.rank = 4, .alpha = 12};
  EXPECT_EQ(options.scale_of("model.layers.0.mlp.down_proj.weight"), 0.5F);
  EXPECT_EQ(options.scale_of("model.layers.0.mlp.up_proj.weight"), 3.0F);
  options.is_rank_stabilized = true;
  EXPECT_EQ(options.scale_of("model.layers.0.mlp.down_proj.weight"), 2.0F);
  EXPECT_EQ(options.scale_of("model.layers.0.mlp.up_proj.weight"), 6.0F);
}

}  // namespace
}  // namespace terrace
