#pragma once

#include <cstdint>
#include <optional>

#include "runtime/model/model_config.h"

// Models of other sizes than their config.json has.
namespace terrace {

// The sizes to change; the others stay.
struct ModelShape {
  std::optional<std::int64_t> layers = std::nullopt;
  std::optional<std::int64_t> width = std::nullopt;
  std::optional<std::int64_t> heads = std::nullopt;
  std::optional<std::int64_t> key_value_heads = std::nullopt;
  std::optional<std::int64_t> head_width = std::nullopt;
  std::optional<std::int64_t> intermediate = std::nullopt;
  std::optional<std::int64_t> vocabulary = std::nullopt;
  std::optional<std::int64_t> positions = std::nullopt;
};

// Returns the model in another shape. It changes the numbers in the model's config.json and reads
// that again, so that all that follows from a size (the options of each layer, the angles of
// positions, the text of config.json) fits. This is the only way to change the number of layers. A
// size that the family has no key for is a bug that aborts. Throws ConfigError as
// parse_model_config() does.
ModelConfig with_shape(const ModelConfig& model, const ModelShape& shape);

}  // namespace terrace
