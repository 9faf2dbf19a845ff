#include "runtime/model/trainable.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

TEST(Pattern, IsTheWholeOfAName) {
  EXPECT_TRUE(matches_pattern("a.b", "a.b"));
  EXPECT_FALSE(matches_pattern("a.b", "a.bc"));
  EXPECT_FALSE(matches_pattern("a.b", "xa.b"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("*", "model.layers.0.weight"));
  EXPECT_TRUE(matches_pattern("*.weight", "a.b.weight"));
  EXPECT_TRUE(matches_pattern("*a*b*", "xxaxxaxbb"));
  EXPECT_FALSE(matches_pattern("*a*b", "xxaxxaxbc"));
  EXPECT_TRUE(matches_pattern("layers.?.x", "layers.1.x"));
  EXPECT_FALSE(matches_pattern("layers.?.x", "layers.12.x"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("", ""));
}

TEST(Pattern, HasSetsOfCharacters) {
  EXPECT_TRUE(matches_pattern("l.[67].x", "l.7.x"));
  EXPECT_FALSE(matches_pattern("l.[67].x", "l.8.x"));
  EXPECT_TRUE(matches_pattern("l.[2-4].x", "l.3.x"));
  EXPECT_FALSE(matches_pattern("l.[2-4].x", "l.5.x"));
  EXPECT_TRUE(matches_pattern("l.[!2-4].x", "l.5.x"));
  EXPECT_FALSE(matches_pattern("l.[!2-4].x", "l.2.x"));
  EXPECT_TRUE(matches_pattern("l.[0-9]*[!0-9]", "l.12x"));
  EXPECT_TRUE(matches_pattern("a[]b]c", "a]c"));
  EXPECT_TRUE(matches_pattern("a[b", "a[b"));  // no set
  EXPECT_TRUE(matches_pattern("a[1-]b", "a-b"));
}

TEST(Trainable, NamesAreThoseOfHuggingFaceWithOrWithoutPrefix) {
  ModelConfig config = small_model("gpt2", {});
  config.trainable = {"transformer.h.1.*"};
  EXPECT_TRUE(is_trainable(config, "h.1.attn.c_attn.weight"));
  EXPECT_FALSE(is_trainable(config, "h.0.attn.c_attn.weight"));
  ModelConfig llama = small_model("llama", {});
  llama.trainable = {"layers.1.*"};
  EXPECT_TRUE(is_trainable(llama, "model.layers.1.mlp.up_proj.weight"));
  EXPECT_FALSE(is_trainable(llama, "lm_head.weight"));
  llama.trainable = {};
  EXPECT_TRUE(is_trainable(llama, "lm_head.weight"));
}

TEST(Trainable, APatternThatMatchesNothingIsRefusedWithNames) {
  const ModelConfig config = small_model("llama", {});
  TERRACE_EXPECT_THROW_WITH(with_trainable(config, {"*norm*", "model.layer.1.*"}), ConfigError,
                            "model.trainable model.layer.1.* matches no tensor of small");
  TERRACE_EXPECT_THROW_WITH(with_trainable(config, {"x"}), ConfigError,
                            "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(with_trainable(config, {"*norm*"}).trainable.size(), 1U);
  // The bias of the choice has no gradient.
  TERRACE_EXPECT_THROW_WITH(
      with_trainable(small_model("glm4_moe", {.head_width = 10}), {"*correction_bias"}),
      ConfigError, "*correction_bias matches no tensor of small that can");
}

// The tensors that train come first, and are padded separately, for any number of ranks.
TEST(Trainable, AllExpertsOfALayerTrainOrNone) {
  const ModelConfig model = small_model("qwen3_moe", {.layers = 3});
  EXPECT_NO_THROW(with_trainable(model, {"*.mlp.experts.*"}));
  EXPECT_NO_THROW(with_trainable(model, {"*.2.mlp.experts.*", "*.mlp.gate.weight"}));
  EXPECT_NO_THROW(with_trainable(model, {"*.self_attn.*"}));
  TERRACE_EXPECT_THROW_WITH(with_trainable(model, {"*.mlp.experts.3.*"}), ConfigError,
                            "mlp.experts.3.gate_proj.weight but not");
  TERRACE_EXPECT_THROW_WITH(with_trainable(model, {"*.down_proj.weight"}), ConfigError,
                            "mlp.experts.0.down_proj.weight but not");
}

TEST(Trainable, TensorsComeFirstInTheirUnit) {
  ModelConfig config = small_model("llama", {});
  config.trainable = {"*mlp*", "*norm*"};
  for (const std::int32_t ranks : {1, 3}) {
    const std::int64_t grain = ranks * kBlockElements;
    for (const UnitLayout& unit : parameter_layout(config, ranks)) {
      std::int64_t trained = 0;
      std::int64_t next = 0;
      bool is_behind = false;
      for (const ParameterTensor& tensor : unit.tensors) {
        EXPECT_FALSE(is_behind && tensor.trainable);
        if (!tensor.trainable && !is_behind) next = unit.trained_elements();
        is_behind = !tensor.trainable;
        EXPECT_EQ(tensor.offset, next) << tensor.name;
        next += tensor.elements();
        if (tensor.trainable) trained = next;
      }
      EXPECT_EQ(unit.trained_count(), trained);
      EXPECT_EQ(unit.trained_elements(), (trained + grain - 1) / grain * grain);
      EXPECT_EQ(unit.padded_elements % grain, 0);
      EXPECT_EQ(unit.elements, next);
    }
  }
}

TEST(Trainable, LayoutsWithoutPatternsAreAsWhereAllMatch) {
  const ModelConfig config = small_model("gpt2", {});
  ModelConfig all = config;
  all.trainable = {"*"};
  const auto plain = parameter_layout(config, 2, {2, 1, true});
  const auto matched = parameter_layout(all, 2, {2, 1, true});
  for (std::size_t u = 0; u < plain.size(); ++u) {
    EXPECT_EQ(plain[u].padded_elements, matched[u].padded_elements);
    EXPECT_EQ(plain[u].frozen_elements, 0);
    EXPECT_EQ(plain[u].padding, matched[u].padding);
    EXPECT_EQ(plain[u].summed, matched[u].summed);
    EXPECT_EQ(plain[u].replicated, matched[u].replicated);
  }
}

}  // namespace
}  // namespace terrace
