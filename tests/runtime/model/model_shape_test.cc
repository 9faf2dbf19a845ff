#include "runtime/model/model_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/model/parameter_layout.h"
#include "tests/runtime/model/small_models.h"

namespace terrace {
namespace {

// A family with one kind of layers, one whose layers take turns, and one without options of layers.
class ShapedModel : public testing::TestWithParam<const char*> {};

TEST_P(ShapedModel, IsTheModelThatItsConfigSaysItIs) {
  const ModelConfig model = small_model(GetParam(), {.layers = 2});
  for (const std::int64_t layers : {1, 2, 8}) {
    const ModelConfig shaped = with_shape(model, {.layers = layers, .vocabulary = 509});
    EXPECT_EQ(shaped.layers, layers);
    EXPECT_EQ(shaped.vocabulary, 509);
    EXPECT_EQ(shaped.width, model.width);
    EXPECT_EQ(shaped.name, model.name);
    const ModelConfig direct = small_model(GetParam(), {.layers = layers, .vocabulary = 509});
    EXPECT_EQ(static_cast<const DecoderOptions&>(shaped),
              static_cast<const DecoderOptions&>(direct));
    EXPECT_EQ(nlohmann::json::parse(shaped.json), nlohmann::json::parse(direct.json));
    EXPECT_EQ(parameter_layout(shaped).size(), static_cast<std::size_t>(layers) + 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShapedModel, testing::Values("gpt2", "llama", "gemma3_text"));

TEST(ModelShape, KeepsWhatIsNotOfConfigJson) {
  ModelConfig model = small_model("llama", {});
  model.trainable = {"lm_head*"};
  EXPECT_EQ(with_shape(model, {.layers = 1}).trainable, model.trainable);
}

TEST(ModelShape, ASizeThatTheConfigLacksIsABug) {
  const ModelConfig model = small_model("gpt2", {});
  EXPECT_DEATH(with_shape(model, {.key_value_heads = 1}), "is_changed");
}

TEST(ModelShape, LayersChangedByHandAreABug) {
  ModelConfig model = small_model("llama", {});
  model.layers = 8;
  EXPECT_DEATH(parameter_layout(model), "layer_options");
}

}  // namespace
}  // namespace terrace
