#pragma once

#include <memory>

#include "memory/tier.h"
#include "parallel/mesh.h"
#include "runtime/step/lane.h"

namespace terrace {

// Ranks of a communicator between two stages that follow each other; the first stage follows the
// last.
inline constexpr int kEarlierStage = 0;
inline constexpr int kLaterStage = 1;

// A stage can talk to one other at a time, so pairs of stages that follow each other meet in
// rounds: those that begin with an even stage, those with an odd one, and, of an odd number of
// stages, the last with the first. A pair is known by its earlier stage.
int link_rounds(int stages);
int round_of_link(int earlier, int stages);

// One rank's ends of a group; null where it is alone.
struct StepGroup {
  Communicator* host = nullptr;
  Communicator* device = nullptr;  // of memory that the host cannot reach; null where all can be

  Communicator& of(Tier tier) const {
    return tier == Tier::kDevice && device != nullptr ? *device : *host;
  }
};

// What one stage has of them, a lane each: to and from the next stage, and the one before.
struct StageLinks {
  StepGroup next;           // sends
  StepGroup previous;       // receives
  StepGroup next_back;      // receives
  StepGroup previous_back;  // sends

  // Those of a lane of messages.
  const StepGroup& of(Lane lane) const;
};

// The communicators of a step as one rank has them. The lanes that use them run at the same time,
// so no two lanes share one.
struct StepRanks {
  MeshShape shape;
  MeshPosition position;
  StepGroup data;                   // the ranks of this stage; collective lane
  Communicator* world = nullptr;    // all; collective lane, for the sums at the end of a step
  StepGroup tensor;                 // those that share units with this one; tensor lane
  StageLinks links;                 // between the stages of this data-parallel rank
  Communicator* devices = nullptr;  // all, of device memory: the groups' were split from it

  // Throws CommError where calls over device memory that have returned were ended.
  void throw_if_aborted() const {
    if (devices != nullptr) devices->throw_if_aborted();
  }

  // Of the tensor-parallel ranks of the last stage, which all have the losses, the first tells
  // them.
  bool has_losses() const {
    return position.pipeline == shape.pipeline - 1 && position.tensor == 0;
  }
};

// Makes them. Called by every rank of `world`, of host memory, which outlives it; and of `devices`,
// the same ranks with a GPU each, if they have.
class StepCommunicators {
 public:
  StepCommunicators(Communicator& world, const MeshShape& shape);
  void add_devices(Communicator& devices);
  StepRanks ranks() const;

 private:
  // Between a stage and the next, and the stage before: of one direction of messages.
  struct Links {
    std::unique_ptr<Communicator> next;
    std::unique_ptr<Communicator> previous;
  };
  // Over one kind of memory.
  struct Groups {
    MeshGroups mesh;
    Links forth;
    Links back;
  };
  static Groups make_groups(Communicator& world, const MeshShape& shape);
  static Links make_links(const MeshGroups& mesh, int stages, const char* direction);

  MeshShape shape_;
  Groups host_;
  Groups device_;  // null ones before add_devices()
  Communicator* devices_ = nullptr;
  std::unique_ptr<Communicator> steps_;
};

}  // namespace terrace
