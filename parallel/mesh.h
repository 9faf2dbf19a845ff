#pragma once

#include <memory>

#include "parallel/communicator.h"

// How ranks are divided between data, tensor and pipeline parallelism.
namespace terrace {

// Ranks are numbered with the tensor position innermost, then data, then pipeline. So the ranks
// that exchange most are the closest, and a stage, which exchanges least, may be on another host.
struct MeshShape {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  // The number of islands: equally large groups of neighbouring data-parallel ranks, such as the
  // ranks of a host.
  int islands = 1;

  int ranks() const { return data * tensor * pipeline; }
  int island_ranks() const { return data / islands; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

struct MeshPosition {
  int data = 0;
  int tensor = 0;
  int pipeline = 0;
  friend bool operator==(const MeshPosition&, const MeshPosition&) = default;
};

// Returns the mesh of `ranks` ranks. Data parallelism gets what tensor and pipeline parallelism
// leave. Throws ConfigError where `ranks` cannot be divided so.
MeshShape mesh_of(int ranks, int tensor, int pipeline);

// Returns the mesh with islands of this many data-parallel ranks. Throws ConfigError where the
// data-parallel ranks cannot be divided so.
MeshShape with_islands(const MeshShape& shape, int island_ranks);

MeshPosition position_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshPosition& position);

// The groups of one rank. There is one along each axis: the ranks that differ from it in that
// position only, ordered by it. A group's name has the other two positions: "dp(tp=1,pp=0)". Where
// there are islands, the data axis has two groups more: the ranks of this rank's island, and the
// ranks with its place in the other islands.
struct MeshGroups {
  MeshPosition position;
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> island;        // null with one island
  std::unique_ptr<Communicator> inter_island;  // null with one island
  std::unique_ptr<Communicator> tensor;
  std::unique_ptr<Communicator> pipeline;
};

// Makes the groups. Called by every rank of `world`, whose size is the mesh's number of ranks.
MeshGroups make_mesh_groups(Communicator& world, const MeshShape& shape);

}  // namespace terrace
