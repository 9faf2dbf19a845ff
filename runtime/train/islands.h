#pragma once

#include "parallel/mesh.h"
#include "runtime/config/train_options.h"

namespace terrace {

// Returns the mesh with the islands of --zero-partition and --island-ranks. `ranks_on_host`: the
// ranks that every host has, of which automatic islands are made: the data-parallel ranks of a
// host. With one host there is one island, which is the division of --zero-partition all. Throws
// ConfigError where the ranks cannot be divided so, or where stage 3 is not used.
MeshShape mesh_in_islands(const MeshShape& shape, const TrainOptions& options, int ranks_on_host);

// Returns the number of ranks on this rank's host. All ranks of `world` (null: one rank) call it.
// Throws ConfigError where hosts have unequally many and islands are made of hosts.
int ranks_of_each_host(Communicator* world, const TrainOptions& options, int on_this_host);

}  // namespace terrace
