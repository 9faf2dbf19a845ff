#include "runtime/train/step_ranks.h"

namespace terrace {

StepCommunicators::StepCommunicators(Communicator& world, const MeshShape& shape)
    : shape_(shape),
      groups_(make_mesh_groups(world, shape)),
      steps_(world.split(0, world.rank(), "sums")),
      upstream_(groups_.pipeline->split(0, groups_.position.pipeline,
                                        groups_.pipeline->name() + " upstream")) {}

StepRanks StepCommunicators::ranks() const {
  return {shape_,         groups_.position,     groups_.data.get(),
          steps_.get(),   groups_.tensor.get(), groups_.pipeline.get(),
          upstream_.get()};
}

}  // namespace terrace
