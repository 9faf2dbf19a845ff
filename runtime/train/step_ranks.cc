#include "runtime/train/step_ranks.h"

#include <fmt/format.h>

namespace terrace {
namespace {

// A stage can join one pair at a time, so the pairs are made in rounds: those that begin with an
// even stage, those with an odd one, and, of an odd number of stages, the last with the first.
int rounds(int stages) { return stages % 2 == 1 ? 3 : 2; }
int round_of_pair(int earlier, int stages) {
  const bool is_over = earlier == stages - 1 && stages % 2 == 1;
  return is_over ? 2 : earlier % 2;
}

}  // namespace

StepCommunicators::StepCommunicators(Communicator& world, const MeshShape& shape)
    : shape_(shape),
      groups_(make_mesh_groups(world, shape)),
      steps_(world.split(0, world.rank(), "sums")),
      forth_(make_links("forward")),
      back_(make_links("backward")) {}

StepCommunicators::Links StepCommunicators::make_links(const char* direction) {
  Links links;
  const int stages = shape_.pipeline;
  if (stages == 1) return links;
  const int stage = groups_.position.pipeline;
  const int before = (stage + stages - 1) % stages;
  for (int round = 0; round < rounds(stages); ++round) {
    const bool is_earlier = round_of_pair(stage, stages) == round;
    const bool is_later = round_of_pair(before, stages) == round;
    const int earlier = is_earlier ? stage : before;
    const int color = is_earlier || is_later ? earlier : stages + stage;  // else alone
    auto pair = groups_.pipeline->split(color, is_earlier ? kEarlierStage : kLaterStage,
                                        fmt::format("{} {} {}-{}", groups_.pipeline->name(),
                                                    direction, earlier, (earlier + 1) % stages));
    if (is_earlier) {
      links.next = std::move(pair);
    } else if (is_later) {
      links.previous = std::move(pair);
    }
  }
  return links;
}

StepRanks StepCommunicators::ranks() const {
  return {shape_,
          groups_.position,
          groups_.data.get(),
          steps_.get(),
          groups_.tensor.get(),
          {forth_.next.get(), forth_.previous.get(), back_.next.get(), back_.previous.get()}};
}

}  // namespace terrace
