#pragma once

#include <memory>

#include "parallel/mesh.h"

namespace terrace {

// The communicators of a step as one rank has them; null where it is alone. The lanes that use them
// run at the same time, so no two lanes share one.
struct StepRanks {
  MeshShape shape;
  MeshPosition position;
  Communicator* data = nullptr;    // the ranks of this stage; collective lane
  Communicator* world = nullptr;   // all; collective lane, for the sums at the end of a step
  Communicator* tensor = nullptr;  // those that share units with this one; tensor lane
  // The stages of this data-parallel rank: activations, and what flows back.
  Communicator* downstream = nullptr;
  Communicator* upstream = nullptr;

  // Of the tensor-parallel ranks of the last stage, which all have the losses, the first tells
  // them.
  bool has_losses() const {
    return position.pipeline == shape.pipeline - 1 && position.tensor == 0;
  }
};

// Makes them. Called by every rank of `world`, which outlives it.
class StepCommunicators {
 public:
  StepCommunicators(Communicator& world, const MeshShape& shape);
  StepRanks ranks() const;

 private:
  MeshShape shape_;
  MeshGroups groups_;
  std::unique_ptr<Communicator> steps_;
  std::unique_ptr<Communicator> upstream_;
};

}  // namespace terrace
