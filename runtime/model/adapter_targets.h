#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/model/model_config.h"

// Which layers of a model an adapter is added to.
namespace terrace {

// The names of stored tensors that can be adapted: weights of the linear layers of blocks.
std::vector<std::string> adaptable_weights(const ModelConfig& config);

// `config` with an adapter on the layers that one of the patterns matches: the name of a stored
// weight, of its module, or the end of that behind a dot ("q_proj"); `*`, `?` and `[..]` as in
// trainable.h. No pattern: all linear layers of blocks. Throws ConfigError for a pattern that
// matches none, naming some that there are.
ModelConfig with_adapter(ModelConfig config, AdapterOptions adapter,
                         const std::vector<std::string>& patterns);

// What target_modules says of these stored weights: the last parts of their names where these mean
// them and no others, else whole names. Sorted.
std::vector<std::string> targets_of(const ModelConfig& config,
                                    const std::set<std::string>& weights);

// "rank 8, alpha 16, layers q_proj v_proj", for people; "none" where there is none.
std::string words_of(const AdapterOptions& adapter);

}  // namespace terrace
