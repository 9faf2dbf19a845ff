#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"

// Which tensors of a model train: those whose Hugging Face name one of the model's patterns
// matches. The others are frozen.
namespace terrace {

// Whether a pattern is the whole of a name: `*` stands for any characters, also none and also dots,
// `?` for one, `[abc]`, `[a-z]` and `[!a-z]` for one of a set.
bool matches_pattern(std::string_view pattern, std::string_view name);

// Whether a pattern is a name with or without the prefix "transformer." or "model.".
bool matches_name(std::string_view pattern, std::string_view name);

// Whether a tensor trains, by the name under which Hugging Face's files have it. Beside an
// adapter nothing of the model does.
bool is_trainable(const ModelConfig& config, std::string_view stored_name);

// Throws ConfigError for a pattern that matches no tensor, naming some that there are.
void check_trainable(const ModelConfig& config, OptionNames name_of_option = field_of_option);
// `config` with these patterns. Throws as check_trainable() does.
ModelConfig with_trainable(ModelConfig config, std::vector<std::string> patterns,
                           OptionNames name_of_option = field_of_option);

}  // namespace terrace
