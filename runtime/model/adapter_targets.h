#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"

// The choice of the layers of a model that an adapter is added to.
namespace terrace {

// The pattern that means all layers that can be adapted.
inline constexpr auto kAllLinear = "all-linear";

// Returns the names of the stored tensors that can be adapted: weights of the linear layers of
// blocks. Routers and the matrices of experts are not among them.
std::vector<std::string> adaptable_weights(const ModelConfig& config);

// Returns `config` with an adapter on the layers that one of the patterns matches. A pattern may
// match the name of a stored weight, of its module, or the end of the module's name after a dot
// ("q_proj"). `*`, `?` and `[..]` are as in trainable.h. Without a pattern, and with kAllLinear
// alone, all of adaptable_weights() are adapted that do not train whole. Throws ConfigError for a
// pattern that matches none, naming some layers that exist; for one that matches a layer that
// trains whole, a router or a matrix of an expert; and where an expert or a router trains whole.
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
