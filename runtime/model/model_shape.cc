#include "runtime/model/model_shape.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "runtime/model/json_text.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

// A size, and what families call it.
struct ShapeKey {
  std::optional<std::int64_t> ModelShape::* size;
  std::array<std::string_view, 2> names;
};

constexpr auto kShapeKeys = std::to_array<ShapeKey>({
    {&ModelShape::layers, {"num_hidden_layers", "n_layer"}},
    {&ModelShape::width, {"hidden_size", "n_embd"}},
    {&ModelShape::heads, {"num_attention_heads", "n_head"}},
    {&ModelShape::key_value_heads, {"num_key_value_heads", "num_key_value_heads"}},
    {&ModelShape::head_width, {"head_dim", "head_dim"}},
    {&ModelShape::intermediate, {"intermediate_size", "n_inner"}},
    {&ModelShape::vocabulary, {"vocab_size", "vocab_size"}},
    {&ModelShape::positions, {"max_position_embeddings", "n_positions"}},
});

void change(ordered_json& config, const ShapeKey& key, std::int64_t size) {
  bool is_changed = false;
  for (const std::string_view name : key.names) {
    if (!config.contains(name)) continue;
    config[std::string(name)] = size;
    is_changed = true;
  }
  TERRACE_CHECK(is_changed);
}

}  // namespace

ModelConfig with_shape(const ModelConfig& model, const ModelShape& shape) {
  ordered_json config = ordered_json::parse(quote_non_finite(model.json));
  for (const ShapeKey& key : kShapeKeys) {
    if (shape.*key.size) change(config, key, *(shape.*key.size));
  }
  ModelConfig changed =
      parse_model_config(unquote_non_finite(config.dump(2) + "\n"), model.name, model.ignored_keys);
  changed.trainable = model.trainable;
  changed.adapter = model.adapter;
  return changed;
}

}  // namespace terrace
