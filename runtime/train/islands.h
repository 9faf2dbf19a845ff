#pragma once

#include "parallel/mesh.h"
#include "runtime/config/train_options.h"
#include "runtime/train/trainer.h"

namespace terrace {

// Returns the mesh with the islands of --zero-partition and --island-ranks. `ranks_on_host`: the
// number of ranks on each host, for automatic islands. If all ranks are on one host there is one
// island, which is the division of --zero-partition all. Throws ConfigError where the ranks cannot
// be divided so, or where stage 3 is not used.
MeshShape mesh_in_islands(const MeshShape& shape, const TrainOptions& options, int ranks_on_host);

// Returns the number of ranks on each host. All ranks call it. Throws ConfigError where islands are
// made of the ranks of a host, but hosts have unequally many, or not consecutive ones.
int ranks_of_each_host(const LaunchedRanks& ranks, const TrainOptions& options);

}  // namespace terrace
