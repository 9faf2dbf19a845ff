#pragma once

#include <memory>

#include "parallel/mesh.h"

namespace terrace {

// Ranks of a communicator between two stages that follow each other; the first stage follows the
// last.
inline constexpr int kEarlierStage = 0;
inline constexpr int kLaterStage = 1;

// What one stage has of them, a lane each: to and from the next stage, and the one before.
struct StageLinks {
  Communicator* next = nullptr;           // sends
  Communicator* previous = nullptr;       // receives
  Communicator* next_back = nullptr;      // receives
  Communicator* previous_back = nullptr;  // sends
};

// The communicators of a step as one rank has them; null where it is alone. The lanes that use them
// run at the same time, so no two lanes share one.
struct StepRanks {
  MeshShape shape;
  MeshPosition position;
  Communicator* data = nullptr;    // the ranks of this stage; collective lane
  Communicator* world = nullptr;   // all; collective lane, for the sums at the end of a step
  Communicator* tensor = nullptr;  // those that share units with this one; tensor lane
  StageLinks links;                // between the stages of this data-parallel rank

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
  // Between a stage and the next, and the stage before: of one direction of messages.
  struct Links {
    std::unique_ptr<Communicator> next;
    std::unique_ptr<Communicator> previous;
  };
  Links make_links(const char* direction);

  MeshShape shape_;
  MeshGroups groups_;
  std::unique_ptr<Communicator> steps_;
  Links forth_;
  Links back_;
};

}  // namespace terrace
