#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"

// The choice of the tensors that train. A tensor trains if one of the model's patterns matches its
// Hugging Face name; the others are frozen.
namespace terrace {

// Returns whether a pattern matches the whole of a name: `*` stands for any characters, also none
// and also dots, `?` for one, `[abc]`, `[a-z]` and `[!a-z]` for one of a set.
bool matches_pattern(std::string_view pattern, std::string_view name);

// Returns whether a pattern matches a name as it is, or with the prefix "transformer." or "model."
// added or removed.
bool matches_name(std::string_view pattern, std::string_view name);

// Returns whether the tensor with this name in Hugging Face's files trains. If the model has an
// adapter, only the adapter and its whole modules train.
bool is_trainable(const ModelConfig& config, std::string_view stored_name);

// Throws ConfigError for a pattern that matches no tensor, naming some tensors that exist, and for
// patterns that match only some of the parameters of a layer's experts.
void check_trainable(const ModelConfig& config, OptionNames name_of_option = field_of_option);
// Returns `config` with these patterns. Throws as check_trainable() does.
ModelConfig with_trainable(ModelConfig config, std::vector<std::string> patterns,
                           OptionNames name_of_option = field_of_option);

}  // namespace terrace
