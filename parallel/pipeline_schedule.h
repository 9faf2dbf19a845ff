#pragma once

#include <cstdint>
#include <span>
#include <vector>

// The order in which a pipeline stage works on the micro-batches of a step.
//
//   GPipe        all forwards, then all backwards (Huang et al., arXiv 1811.06965). A stage holds
//                the activations of all m micro-batches.
//   1F1B         after a warm-up, one backward for each forward (Narayanan et al.,
//                arXiv 2006.09503, there PipeDream-Flush). The bubble is the same,
//                (p-1) / (m + p-1) of the time; stage s holds at most p - s micro-batches.
//   interleaved  1F1B in which stage s has v pieces of the model, virtual stages s, s + p, ...
//                (Narayanan et al., arXiv 2104.04473). The bubble is (p-1) / (v m + p-1); a stage
//                holds at most 2 (p - s - 1) + (v - 1) p + 1 pieces' activations. p must divide m.
namespace terrace {

enum class PipelineSchedule : std::uint8_t { kGpipe, k1F1B, kInterleaved };

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int stages = 1;
  int micro_batches = 1;
  int virtual_stages = 1;  // per stage; more than 1 for kInterleaved only
};

enum class PipelinePass : std::uint8_t { kForward, kBackward };

struct PipelineSlot {
  PipelinePass pass = PipelinePass::kForward;
  int micro_batch = 0;
  int virtual_stage = 0;  // of this stage, 0 first; in the model it is number
                          // virtual_stage * stages + stage
  friend bool operator==(const PipelineSlot&, const PipelineSlot&) = default;
};

// Throws ConfigError, which names the flags, where the shape has no such schedule.
void check_pipeline_shape(const PipelineShape& shape);

// Returns the slots of `stage` in a step, in order. Micro-batches of a virtual stage come in
// ascending order, in both passes. Throws ConfigError where the shape has no such schedule.
std::vector<PipelineSlot> pipeline_slots(const PipelineShape& shape, int stage);

// Cuts units of the given costs into `pieces` runs of at least one unit each, so that the largest
// sum of a run is as small as possible. Where stages are not equally fast, the sum of a run is
// divided by the speed of its stage. Piece n belongs to stage n modulo the number of speeds;
// without speeds all stages are equally fast. Returns the first unit of each piece, and after the
// last of them the number of units. Throws ConfigError where there are fewer units than pieces.
std::vector<int> balance_stages(std::span<const double> unit_costs, int pieces,
                                std::span<const double> stage_speeds = {});

}  // namespace terrace
