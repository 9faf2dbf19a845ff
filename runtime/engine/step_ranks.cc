#include "runtime/engine/step_ranks.h"

#include <fmt/format.h>

namespace terrace {

int link_rounds(int stages) { return stages % 2 == 1 ? 3 : 2; }

int round_of_link(int earlier, int stages) {
  const bool is_over = earlier == stages - 1 && stages % 2 == 1;
  return is_over ? 2 : earlier % 2;
}

StepCommunicators::StepCommunicators(Communicator& world, const MeshShape& shape)
    : shape_(shape),
      host_(make_groups(world, shape)),
      steps_(world.split(0, world.rank(), "sums")) {}

void StepCommunicators::add_devices(Communicator& devices) {
  device_ = make_groups(devices, shape_);
  devices_ = &devices;
}

StepCommunicators::Groups StepCommunicators::make_groups(Communicator& world,
                                                         const MeshShape& shape) {
  Groups groups;
  groups.mesh = make_mesh_groups(world, shape);
  groups.forth = make_links(groups.mesh, shape.pipeline, "forward");
  groups.back = make_links(groups.mesh, shape.pipeline, "backward");
  return groups;
}

StepCommunicators::Links StepCommunicators::make_links(const MeshGroups& mesh, int stages,
                                                       const char* direction) {
  Links links;
  if (stages == 1) return links;
  const int stage = mesh.position.pipeline;
  const int before = (stage + stages - 1) % stages;
  for (int round = 0; round < link_rounds(stages); ++round) {
    const bool is_earlier = round_of_link(stage, stages) == round;
    const bool is_later = round_of_link(before, stages) == round;
    const int earlier = is_earlier ? stage : before;
    const int color = is_earlier || is_later ? earlier : stages + stage;  // else alone
    auto pair = mesh.pipeline->split(color, is_earlier ? kEarlierStage : kLaterStage,
                                     fmt::format("{} {} {}-{}", mesh.pipeline->name(), direction,
                                                 earlier, (earlier + 1) % stages));
    if (is_earlier) {
      links.next = std::move(pair);
    } else if (is_later) {
      links.previous = std::move(pair);
    }
  }
  return links;
}

const StepGroup& StageLinks::of(Lane lane) const {
  switch (lane) {
    case Lane::kSend:
      return next;
    case Lane::kReceive:
      return previous;
    case Lane::kSendBack:
      return previous_back;
    default:
      TERRACE_CHECK(lane == Lane::kReceiveBack);
      return next_back;
  }
}

StepRanks StepCommunicators::ranks() const {
  const auto both = [](const std::unique_ptr<Communicator>& host,
                       const std::unique_ptr<Communicator>& device) {
    return StepGroup{host.get(), device.get()};
  };
  StepRanks ranks;
  ranks.shape = shape_;
  ranks.position = host_.mesh.position;
  ranks.data = both(host_.mesh.data, device_.mesh.data);
  ranks.island = both(host_.mesh.island, device_.mesh.island);
  ranks.inter_island = both(host_.mesh.inter_island, device_.mesh.inter_island);
  ranks.world = steps_.get();
  ranks.tensor = both(host_.mesh.tensor, device_.mesh.tensor);
  ranks.links = {both(host_.forth.next, device_.forth.next),
                 both(host_.forth.previous, device_.forth.previous),
                 both(host_.back.next, device_.back.next),
                 both(host_.back.previous, device_.back.previous)};
  ranks.devices = devices_;
  return ranks;
}

}  // namespace terrace
