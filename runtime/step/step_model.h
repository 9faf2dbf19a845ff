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
// from first_units[n] up to first_units[n + 1]. Stage s has the pieces s, s + stages, ..., as many
// as there are virtual stages. So the first stage begins with the embedding and the last stage ends
// with the head. With one stage the model is not cut.
struct PipelineCut {
  std::int32_t stages = 1;
  std::int32_t stage = 0;  // this rank's
  std::vector<std::int32_t> first_units;
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
  bool scales_loss = false;  // the head reads a scale, which each step's norm may change
  std::int64_t chunk_elements = kChunkElements;
  ZeroSharding zero;
  PipelineCut pipeline;
  // The compute of a step in order, if that order comes from outside (runtime/step/task_order.h).
  // If empty, the schedule pass makes the order.
  std::vector<StepTask> tasks;
  // Whether the updated parameters of a tied embedding pass between pipeline stages in host memory,
  // even where the embedding is at home elsewhere. It may be at home elsewhere at one end and not
  // at the other, and devices exchange only their own memory.
  bool updates_meet_on_host = false;

  StepModel() = default;
  explicit StepModel(ComputeModel model) : ComputeModel(std::move(model)) {}

  std::size_t unit_count() const { return units.size(); }
  // Returns the last unit, whether or not it is a head.
  std::int32_t last_unit() const { return static_cast<std::int32_t>(units.size()) - 1; }
  std::size_t parameter_bytes() const { return size_of(compute_type); }  // per element
  bool rounds_gradients() const { return gradient_type != DType::kF32; }
  // Returns the bytes that this many elements of a state take at home. Not for activations: their
  // size does not follow from a number of elements.
  std::size_t state_bytes(StateClass state, std::int64_t elements) const;
  // Returns whether the state of a unit is at home on this rank at all.
  bool has_home(StateClass state, std::int32_t unit) const;
  // Returns how many of the unit's chunks have such a state. They are the first chunks.
  std::int64_t home_chunks(StateClass state, std::int32_t unit) const;
  // Returns the part of a chunk that the home of a state has. Gradients may be at home in parts
  // even where this says that they are whole: see Homes::is_sharded() (runtime/step/homes.h).
  ChunkPart home_part(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  std::size_t home_bytes(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  // Returns where a chunk begins in the home of a unit, which has its chunks one behind the other.
  std::size_t home_offset(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  // Return the number of chunks in a unit's flat sequence: of all chunks, and of those that train.
  // First come the chunks of trained elements, which gradients and optimizer state have too, then
  // the chunks of frozen elements. No chunk has both.
  std::int64_t chunks(std::int32_t unit) const;
  std::int64_t trained_chunks(std::int32_t unit) const;
  // Return how many of the unit's elements come before a chunk, and how many are in it. All chunks
  // are full, except the last of either kind.
  std::int64_t chunk_begin(std::int32_t unit, std::int64_t chunk) const;
  std::int64_t chunk_size(std::int32_t unit, std::int64_t chunk) const;
  // Returns the chunk that an element of the unit is in.
  std::int64_t chunk_of(std::int32_t unit, std::int64_t element) const;
  // These two are as in UnitModel.
  bool fuses_passes(std::int32_t unit) const { return units.at(unit).fuses_passes(); }
  bool joins_micro_batches(std::int32_t unit) const { return units.at(unit).joins_micro_batches(); }
  bool trains(std::int32_t unit) const { return units.at(unit).trained_elements() > 0; }
  // Returns the lowest unit that trains. The backward ends there: the units below have none.
  std::int32_t lowest_trained() const;
  // Returns whether the head adds to a gradient of the embedding.
  bool has_tied_gradient() const;
  // Returns a rank's equal part of a chunk; with one rank the whole chunk.
  ChunkPart shard(std::int32_t unit, std::int64_t chunk, std::int32_t rank) const;
  ChunkPart whole(std::int32_t unit, std::int64_t chunk) const {
    return {0, chunk_size(unit, chunk)};
  }
  // Returns whether the unit is in this rank's pipeline stage.
  bool has_unit(std::int32_t unit) const {
    return pipeline.stages == 1 || pipeline.stage_of(unit) == pipeline.stage;
  }
  // Returns whether this pipeline stage has a copy of a tied embedding's parameters: the last stage
  // has one for its head.
  bool has_copy_of_embedding() const { return tied && pipeline.stages > 1 && pipeline.is_last(); }
  bool has_parameters(std::int32_t unit) const {
    const bool is_here = has_unit(unit) || (unit == 0 && has_copy_of_embedding());
    return is_here && units.at(unit).padded_elements > 0;
  }
  std::int32_t ranks() const { return zero.ranks * pipeline.stages * tensor.ranks; }
  // Returns the rank at this place of the mesh, as in parallel/mesh.h: pipeline stages are
  // outermost, tensor-parallel ranks innermost.
  std::int32_t rank_of(std::int32_t stage, std::int32_t data_rank, std::int32_t tensor_rank) const {
    return (stage * zero.ranks + data_rank) * tensor.ranks + tensor_rank;
  }
  // Return the number of norm partials that a rank of this pipeline stage computes: for all units
  // before this one, and for all units.
  std::int64_t first_partial(std::int32_t unit) const {
    return partials_before(unit, pipeline.stage);
  }
  std::int64_t partials() const { return first_partial(static_cast<std::int32_t>(units.size())); }
  // Returns whether ranks compute partials that other ranks do not have.
  bool gathers_partials() const {
    return zero.of_optimizer() || pipeline.stages > 1 || tensor.ranks > 1;
  }
  // Returns the most partials that a rank of any pipeline stage computes.
  std::int64_t most_partials() const;

 private:
  std::int64_t partials_before(std::int32_t unit, std::int32_t stage) const;
};

}  // namespace terrace
