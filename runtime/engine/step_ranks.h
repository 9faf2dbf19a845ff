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
// rounds. First come the pairs that begin with an even stage, then those that begin with an odd
// one. With an odd number of stages, the last meets the first in a round of its own. A pair is
// named by its earlier stage.
int link_rounds(int stages);
int round_of_link(int earlier, int stages);

// One rank's ends of a group; null where it is alone.
struct StepGroup {
  Communicator* host = nullptr;
  Communicator* device = nullptr;  // for memory that the host cannot reach; null: it reaches all

  Communicator& of(Tier tier) const {
    return tier == Tier::kDevice && device != nullptr ? *device : *host;
  }
};

// One stage's ends of its links, a lane each: to and from the next stage, and the stage before.
struct StageLinks {
  StepGroup next;           // sends
  StepGroup previous;       // receives
  StepGroup next_back;      // receives
  StepGroup previous_back;  // sends

  // Returns the ends that a lane of messages uses.
  const StepGroup& of(Lane lane) const;
};

// The communicators of a step as one rank has them. The lanes that use them run at the same time,
// so no two lanes share one.
struct StepRanks {
  MeshShape shape;
  MeshPosition position;
  StepGroup data;                   // the ranks of this stage; collective lane
  StepGroup island;                 // of these, the ranks of this one's island; island lane
  StepGroup inter_island;           // of these, one rank of each island; inter_island lane
  Communicator* world = nullptr;    // all; collective lane, for the sums at the end of a step
  StepGroup tensor;                 // the ranks that share units with this one; tensor lane
  StageLinks links;                 // between the stages of this data-parallel rank
  Communicator* devices = nullptr;  // all, for device memory: the groups' were split from it

  // Throws CommError where calls over device memory were ended after they had returned.
  void throw_if_aborted() const {
    if (devices != nullptr) devices->throw_if_aborted();
  }

  // Returns whether this rank reports the losses. All tensor-parallel ranks of the last stage have
  // them, and the first of these reports them.
  bool has_losses() const {
    return position.pipeline == shape.pipeline - 1 && position.tensor == 0;
  }
};

// Makes and owns the communicators of a step. Every rank of `world` makes one; `world` is of host
// memory and outlives it. If the ranks have a GPU each, every rank then adds `devices`, a
// communicator of the same ranks over device memory.
class StepCommunicators {
 public:
  StepCommunicators(Communicator& world, const MeshShape& shape);
  void add_devices(Communicator& devices);
  StepRanks ranks() const;

 private:
  // The links of a stage to the next stage and to the stage before, for one direction of messages.
  struct Links {
    std::unique_ptr<Communicator> next;
    std::unique_ptr<Communicator> previous;
  };
  // The communicators over one kind of memory.
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
