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

  int ranks() const { return data * tensor * pipeline; }
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

MeshPosition position_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshPosition& position);

// The groups of one rank. There is one along each axis: the ranks that differ from it in that
// position only, ordered by it. A group's name has the other two positions: "dp(tp=1,pp=0)".
struct MeshGroups {
  MeshPosition position;
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> tensor;
  std::unique_ptr<Communicator> pipeline;
};

// Makes the groups. Called by every rank of `world`, whose size is the mesh's number of ranks.
MeshGroups make_mesh_groups(Communicator& world, const MeshShape& shape);

}  // namespace terrace
