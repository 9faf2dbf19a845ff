#include "runtime/model/parameter_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/runtime/model/small_models.h"

namespace terrace {
namespace {

ModelConfig small(std::string_view family) {
  return small_model(
      family,
      {.width = 24, .head_width = 6, .intermediate = 40, .vocabulary = 300, .positions = 16});
}

std::vector<std::string> names(const UnitLayout& unit) {
  std::vector<std::string> list;
  for (const ParameterTensor& tensor : unit.tensors) list.push_back(tensor.name);
  return list;
}

TEST(ParameterLayout, TensorsLieWithoutGapsAndUnitsArePadded) {
  for (const std::string_view family : {"gpt2", "llama"}) {
    const std::vector<UnitLayout> layout = parameter_layout(small(family));
    ASSERT_EQ(layout.size(), 4U);
    std::set<std::uint32_t> streams;
    std::set<std::string> all_names;
    std::size_t tensors = 0;
    for (std::size_t i = 0; i < layout.size(); ++i) {
      const UnitLayout& unit = layout[i];
      EXPECT_EQ(unit.index, static_cast<std::int64_t>(i));
      std::int64_t end = 0;
      bool vectors = false;
      for (const ParameterTensor& tensor : unit.tensors) {
        EXPECT_EQ(tensor.offset, end) << tensor.name;
        end += tensor.rows * tensor.columns;
        EXPECT_EQ(tensor.decay, !tensor.is_vector) << tensor.name;
        EXPECT_FALSE(vectors && !tensor.is_vector) << tensor.name << " comes after a vector";
        vectors = vectors || tensor.is_vector;
        streams.insert(tensor.random_stream);
        all_names.insert(tensor.name);
        ++tensors;
      }
      EXPECT_EQ(unit.elements, end);
      EXPECT_EQ(unit.padded_elements % kBlockElements, 0);
      EXPECT_GE(unit.padded_elements, end);
      EXPECT_LT(unit.padded_elements, end + kBlockElements);
    }
    EXPECT_EQ(streams.size(), tensors);
    EXPECT_EQ(all_names.size(), tensors);
  }
}

TEST(ParameterLayout, LlamaBlock) {
  ModelConfig config = small("llama");
  config.head_width = 8;  // not width / heads
  config.has_qkv_bias = config.has_projection_bias = true;
  config.has_feed_forward_bias = true;
  const UnitLayout block = parameter_layout(config)[2];
  EXPECT_EQ(block.kind, UnitKind::kBlock);
  const std::string prefix = "model.layers.1.";
  std::vector<std::string> wanted;
  for (const char* name :
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.bias",
        "self_attn.v_proj.bias", "self_attn.o_proj.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias",
        "mlp.down_proj.bias", "input_layernorm.weight", "post_attention_layernorm.weight"}) {
    wanted.push_back(prefix + name);
  }
  EXPECT_EQ(names(block), wanted);
  EXPECT_EQ(tensor_named(block, "q_proj.weight").rows, 32);
  EXPECT_EQ(tensor_named(block, "k_proj.weight").rows, 16);
  EXPECT_EQ(tensor_named(block, "o_proj.weight").rows, 24);
  EXPECT_EQ(tensor_named(block, "o_proj.weight").columns, 32);
  EXPECT_EQ(tensor_named(block, "v_proj.bias").rows, 16);
  EXPECT_EQ(tensor_named(block, "down_proj.weight").init_deviation, 0.02F);
  EXPECT_EQ(tensor_named(block, "input_layernorm.weight").init, Init::kOnes);
  EXPECT_EQ(tensor_named(block, "up_proj.bias").init, Init::kZeros);
  EXPECT_FALSE(tensor_named(block, "q_proj.weight").stored_transposed);
}

TEST(ParameterLayout, Gpt2Block) {
  const UnitLayout block = parameter_layout(small("gpt2"))[1];
  const std::vector<std::string> wanted = {
      "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight",
      "h.0.mlp.c_proj.weight",  "h.0.attn.c_attn.bias",   "h.0.attn.c_proj.bias",
      "h.0.mlp.c_fc.bias",      "h.0.mlp.c_proj.bias",    "h.0.ln_1.weight",
      "h.0.ln_1.bias",          "h.0.ln_2.weight",        "h.0.ln_2.bias"};
  EXPECT_EQ(names(block), wanted);
  const ParameterTensor& attention = tensor_named(block, "attn.c_attn.weight");
  EXPECT_EQ(attention.rows, 72);
  EXPECT_EQ(attention.columns, 24);
  EXPECT_TRUE(attention.stored_transposed);
  EXPECT_EQ(attention.init_deviation, 0.02F);
  EXPECT_EQ(tensor_named(block, "mlp.c_proj.weight").columns, 40);
  EXPECT_EQ(tensor_named(block, "mlp.c_proj.weight").init_deviation,
            0.02F / 2.0F);  // sqrt(2 * 2 layers)
  EXPECT_EQ(tensor_named(block, "attn.c_proj.weight").init_deviation, 0.02F / 2.0F);
  EXPECT_EQ(tensor_named(block, "ln_2.weight").init, Init::kOnes);
  EXPECT_EQ(tensor_named(block, "ln_2.bias").init, Init::kZeros);
}

TEST(ParameterLayout, TiedModelsHaveNoHeadWeight) {
  ModelConfig config = small("llama");
  EXPECT_EQ(names(parameter_layout(config).back()),
            (std::vector<std::string>{"lm_head.weight", "model.norm.weight"}));
  config.tied = true;
  EXPECT_EQ(names(parameter_layout(config).back()), std::vector<std::string>{"model.norm.weight"});
  config = small("gpt2");
  config.tied = true;
  EXPECT_EQ(names(parameter_layout(config).back()),
            (std::vector<std::string>{"ln_f.weight", "ln_f.bias"}));
  EXPECT_EQ(names(parameter_layout(config).front()),
            (std::vector<std::string>{"wte.weight", "wpe.weight"}));
  EXPECT_EQ(tensor_named(parameter_layout(config).front(), "wte.weight").decay, true);
}

TEST(ParameterLayout, EveryRankHasAsManyBlocks) {
  const ModelConfig config = small("llama");
  const std::vector<UnitLayout> alone = parameter_layout(config);
  const std::vector<UnitLayout> three = parameter_layout(config, 3);
  for (std::size_t u = 0; u < alone.size(); ++u) {
    EXPECT_EQ(three[u].elements, alone[u].elements);
    EXPECT_EQ(three[u].padded_elements % (3 * kBlockElements), 0);
    EXPECT_LT(three[u].padded_elements - three[u].elements, 3 * kBlockElements);
  }
}

TEST(ParameterLayout, FindsTensorsByWhatTheyAre) {
  const UnitLayout block = parameter_layout(small("gpt2"))[1];
  EXPECT_EQ(block.find(ParameterKind::kDown)->name, "h.0.mlp.c_proj.weight");
  EXPECT_EQ(block.find(ParameterKind::kGate), nullptr);
}

}  // namespace
}  // namespace terrace
