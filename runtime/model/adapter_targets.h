#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"

// The choice of the layers of a model that an adapter is added to.
namespace terrace {

// Throws ConfigError for a model with layers of experts, whose adapters are not built.
void refuse_adapter_of_experts(const ModelConfig& config);

// Returns the names of the stored tensors that can be adapted: weights of the linear layers of
// blocks.
std::vector<std::string> adaptable_weights(const ModelConfig& config);

// Returns `config` with an adapter on the layers that one of the patterns matches. A pattern may
// match the name of a stored weight, of its module, or the end of the module's name after a dot
// ("q_proj"). `*`, `?` and `[..]` are as in trainable.h. Without a pattern, all linear layers of
// blocks are adapted that do not train whole. Throws ConfigError for a pattern that matches none,
// naming some layers that exist, and for one that matches a layer that trains whole.
ModelConfig with_adapter(ModelConfig config, AdapterOptions adapter,
                         const std::vector<std::string>& patterns);

// Returns what target_modules says of these stored weights, sorted: the last parts of their names
// where these match them and no others, else whole names.
std::vector<std::string> targets_of(const ModelConfig& config,
                                    const std::set<std::string>& weights);

// Returns a text for people, such as "rank 8, alpha 16, layers q_proj v_proj"; "none" where there
// is no adapter.
std::string words_of(const AdapterOptions& adapter);

}  // namespace terrace
