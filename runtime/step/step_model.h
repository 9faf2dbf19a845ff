#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "memory/state_class.h"
#include "optim/state_format.h"
#include "runtime/model/unit_model.h"

// All that the passes need to know of a model and a batch: sizes and costs.
namespace terrace {

// How the states are divided over data-parallel ranks: ZeRO (Rajbhandari et al. 2020,
// arXiv:1910.02054). Stage 0 divides nothing, stage 1 the optimizer state, stage 2 also gradients,
// stage 3 also parameters. With one rank all stages are the same.
struct ZeroSharding {
  std::int32_t stage = 0;
  std::int32_t ranks = 1;
  std::int32_t rank = 0;

  bool of(StateClass state) const { return ranks > 1 && stage >= info_of(state).divided_from; }
  bool of_optimizer() const { return of(StateClass::kOptimizer); }
  bool of_gradients() const { return of(StateClass::kGradients); }
  bool of_parameters() const { return of(StateClass::kParameters); }
};

// The units that each stage of a pipeline has. The model is cut into pieces: piece n has the units
// from piece_begins[n] up to piece_begins[n + 1]. Stage s has the pieces s, s + stages, ..., as
// many as there are virtual stages. So the first stage begins with the embedding and the last stage
// ends with the head. With one stage the model is not cut.
struct PipelineCut {
  std::int32_t stages = 1;
  std::int32_t stage = 0;  // this rank's
  std::vector<std::int32_t> piece_begins;
  std::int32_t virtual_stages = 1;  // pieces per stage

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  std::int32_t pieces() const { return stages * virtual_stages; }
  std::int32_t stage_of(std::int32_t unit) const;
};

// A compute task of a schedule that comes from outside. A head has only a forward task, which
// stands for all that the head computes.
struct StepTask {
  UnitPass pass = UnitPass::kForward;  // or kBackward
  std::int32_t unit = 0;
  std::int32_t micro_batch = 0;

  friend bool operator==(const StepTask&, const StepTask&) = default;
};

// A range of a chunk's elements.
struct ChunkPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// A model as one rank trains it.
struct StepModel : ComputeModel {
  // The type of finished gradients, between ranks and at home. Sums over micro-batches are fp32.
  DType gradient_type = DType::kF32;
  StateFormat state_format;  // of the optimizer state
  // The same by group, where groups have types or update rules of their own; else empty.
  std::vector<StateFormat> formats_of_groups;
  bool scales_loss = false;  // the head reads a scale, which each step's norm may change
  std::int64_t chunk_elements = kChunkElements;
  ZeroSharding zero;
  PipelineCut pipeline;
  // The compute of a step in order, if that order comes from outside (runtime/step/task_order.h).
  // If empty, the schedule pass makes the order.
  std::vector<StepTask> tasks;
  // Whether updated parameters that units of two pipeline stages use pass between the stages in
  // host memory, even where their home is elsewhere. It may be elsewhere at one end and not at the
  // other, and devices exchange only their own memory.
  bool updates_meet_on_host = false;

  StepModel() = default;
  explicit StepModel(ComputeModel model) : ComputeModel(std::move(model)) {}

  std::size_t unit_count() const { return units.size(); }
  std::int32_t group_count() const { return static_cast<std::int32_t>(groups.size()); }
  // Returns the last unit, whether or not it is a head.
  std::int32_t last_unit() const { return static_cast<std::int32_t>(units.size()) - 1; }
  DType parameter_type(std::int32_t group) const {
    return groups.at(index(group)).type.value_or(compute_type);
  }
  // Return the bytes of one parameter of the group, and of all of them.
  std::size_t parameter_bytes(std::int32_t group) const { return size_of(parameter_type(group)); }
  std::size_t group_bytes(std::int32_t group) const {
    return static_cast<std::size_t>(groups.at(index(group)).padded_elements) *
           parameter_bytes(group);
  }
  const StateFormat& format_of(std::int32_t group) const {
    return formats_of_groups.empty() ? state_format : formats_of_groups.at(index(group));
  }
  // Returns the number of update rules that groups have.
  std::int32_t rules() const;
  bool rounds_gradients() const { return gradient_type != DType::kF32; }
  // Returns the bytes that this many elements of a state take at home. Not for activations: their
  // size does not follow from a number of elements.
  std::size_t state_bytes(StateClass state, std::int32_t group, std::int64_t elements) const;
  // Returns whether the state of a group is at home on this rank at all.
  bool has_home(StateClass state, std::int32_t group) const;
  // Returns how many of the group's chunks have such a state. They are the first chunks.
  std::int64_t home_chunks(StateClass state, std::int32_t group) const;
  // Returns the part of a chunk that the home of a state has. Gradients may be at home in parts
  // even where this says that they are whole: see Homes::is_sharded() (runtime/step/homes.h).
  ChunkPart home_part(StateClass state, std::int32_t group, std::int64_t chunk) const;
  std::size_t home_bytes(StateClass state, std::int32_t group, std::int64_t chunk) const;
  // Returns where a chunk begins in the home of a group, which has its chunks one behind the other.
  std::size_t home_offset(StateClass state, std::int32_t group, std::int64_t chunk) const;
  // Return the number of chunks in a group's flat sequence: of all chunks, and of those that train.
  // First come the chunks of trained elements, which gradients and optimizer state have too, then
  // the chunks of frozen elements. No chunk has both.
  std::int64_t chunks(std::int32_t group) const;
  std::int64_t trained_chunks(std::int32_t group) const;
  // Return how many of the group's elements come before a chunk, and how many are in it. All chunks
  // are full, except the last of either kind.
  std::int64_t chunk_begin(std::int32_t group, std::int64_t chunk) const;
  std::int64_t chunk_size(std::int32_t group, std::int64_t chunk) const;
  // Returns the chunk that an element of the group is in.
  std::int64_t chunk_of(std::int32_t group, std::int64_t element) const;
  // These two are as in UnitModel.
  bool fuses_passes(std::int32_t unit) const { return units.at(unit).fuses_passes(); }
  bool joins_micro_batches(std::int32_t unit) const { return units.at(unit).joins_micro_batches(); }
  bool group_trains(std::int32_t group) const {
    return groups.at(index(group)).trained_elements() > 0;
  }
  // Returns whether a group of the unit's own trains.
  bool trains(std::int32_t unit) const;
  // Returns the unit whose parameters a group is.
  std::int32_t owner(std::int32_t group) const { return groups.at(index(group)).unit; }
  // Returns whether the unit uses the group, as its own or as another unit's.
  bool uses(std::int32_t unit, std::int32_t group) const;
  // Returns the lowest unit that trains. The backward ends there: the units below have none.
  std::int32_t lowest_trained() const;
  // Returns a rank's equal part of a chunk; with one rank the whole chunk.
  ChunkPart shard(std::int32_t group, std::int64_t chunk, std::int32_t rank) const;
  ChunkPart whole(std::int32_t group, std::int64_t chunk) const {
    return {0, chunk_size(group, chunk)};
  }
  // Returns the pipeline stage of a unit.
  std::int32_t stage_of(std::int32_t unit) const {
    return pipeline.stages == 1 ? 0 : pipeline.stage_of(unit);
  }
  // Returns whether the unit is in this rank's pipeline stage.
  bool has_unit(std::int32_t unit) const {
    return pipeline.stages == 1 || pipeline.stage_of(unit) == pipeline.stage;
  }
  // Returns whether the group's owner is in this rank's pipeline stage. There the group's gradient
  // is finished and its update made.
  bool owns(std::int32_t group) const { return has_unit(owner(group)); }
  // Returns whether a unit of this pipeline stage uses the group.
  bool has_parameters(std::int32_t group) const;
  // Returns whether this pipeline stage has only a copy of the group: the owner is in another
  // stage.
  bool borrows(std::int32_t group) const { return !owns(group) && has_parameters(group); }
  // Returns whether the group's owner is in this pipeline stage and another stage has a copy.
  bool lends(std::int32_t group) const;
  // Returns whether a unit of another stage than the owner's writes gradients of the group.
  bool passes_gradient(std::int32_t group) const;
  std::int32_t ranks() const { return zero.ranks * pipeline.stages * tensor.ranks; }
  // Returns the rank at this place of the mesh, as in parallel/mesh.h: pipeline stages are
  // outermost, tensor-parallel ranks innermost.
  std::int32_t rank_of(std::int32_t stage, std::int32_t data_rank, std::int32_t tensor_rank) const {
    return (stage * zero.ranks + data_rank) * tensor.ranks + tensor_rank;
  }
  // Return the number of norm partials that a rank of this pipeline stage computes: for all groups
  // before this one, and for all groups.
  std::int64_t first_partial(std::int32_t group) const {
    return partials_before(group, pipeline.stage);
  }
  std::int64_t partials() const { return first_partial(group_count()); }
  // Returns whether ranks compute partials that other ranks do not have.
  bool gathers_partials() const {
    return zero.of_optimizer() || pipeline.stages > 1 || tensor.ranks > 1;
  }
  // Returns the most partials that a rank of any pipeline stage computes.
  std::int64_t most_partials() const;

 private:
  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
  std::int64_t partials_before(std::int32_t group, std::int32_t stage) const;
};

}  // namespace terrace
