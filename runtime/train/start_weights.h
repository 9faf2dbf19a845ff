#pragma once

#include <memory>
#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/config/train_options.h"
#include "runtime/train/rank_group.h"

namespace terrace {

// Opens the weights beside the config.json of --model that a run starts from. All ranks call it,
// and the first one reports doubts about the weights. Returns null where the run starts from random
// weights. Throws as takes_weights() and HfDirectory do, and ConfigError where ranks find different
// weights.
std::unique_ptr<HfDirectory> open_start_weights(const ModelOptions& options,
                                                const ModelConfig& model,
                                                const std::vector<UnitLayout>& layout,
                                                const RankGroup& ranks, Log& log);

}  // namespace terrace
