#pragma once

#include <cstdint>

#include "parallel/communicator.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/train/rank_group.h"

// Checks that all ranks of a run have the same options, model, data and start. Each rank reads its
// own flags and files, so a flag that one rank lacks, or an old copy on one host, would give a
// result that belongs to neither version. All ranks call each function, and each throws ConfigError
// on all ranks.
namespace terrace {

// Checks that all ranks have the same options; the error names the flags that differ from the first
// rank's. Paths, budgets, threads and options for the console may differ. Call it first, because
// what the ranks do next depends on the flags. `world`: null with one rank.
void check_same_options(Communicator* world, const TrainOptions& options);

// Checks that the ranks' config.json files describe the same computation.
void check_same_model(const RankGroup& ranks, const ModelConfig& model);
// Checks that all ranks have the same number of tokens, and the same tokens at places spread over
// the data.
void check_same_data(const RankGroup& ranks, const Dataset& data);
// Checks that all ranks have the same checkpoint; null: none.
void check_same_checkpoint(const RankGroup& ranks, const Checkpoint* checkpoint);
// Checks that all ranks have the same tensors, by comparing parts of each.
void check_same_weights(const RankGroup& ranks, const std::string& directory,
                        const HfDirectory& weights);
// Checks that data-parallel ranks which each keep whole parameters have filled in the same values,
// by a hash of all of them.
void check_same_parameters(const RankGroup& ranks, std::uint64_t hash);

}  // namespace terrace
