#pragma once

#include <cstdint>

#include "parallel/communicator.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/train/rank_group.h"

// What all ranks of a run must have alike. Each reads its own flags and files, so a flag that one
// rank lacks, or an old copy on one host, would give a result that is of neither. All ranks call
// each of these, and each throws ConfigError on all of them.
namespace terrace {

// Names the flags that one rank has otherwise than the first one. Paths, budgets, threads and what
// concerns the console may differ. Comes first: what ranks do next depends on the flags. `world`:
// null with one rank.
void check_same_options(Communicator* world, const TrainOptions& options);

// What config.json makes the model compute.
void check_same_model(const RankGroup& ranks, const ModelConfig& model);
// As many tokens, and the same ones at places spread over the data.
void check_same_data(const RankGroup& ranks, const Dataset& data);
// The same checkpoint; null: none.
void check_same_checkpoint(const RankGroup& ranks, const Checkpoint* checkpoint);
// The same tensors, by parts of each.
void check_same_weights(const RankGroup& ranks, const std::string& directory,
                        const HfDirectory& weights);
// Data-parallel ranks that each keep whole parameters have filled in the same, by a hash of all.
void check_same_parameters(const RankGroup& ranks, std::uint64_t hash);

}  // namespace terrace
