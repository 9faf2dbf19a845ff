#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "memory/state_class.h"
#include "optim/state_format.h"
#include "runtime/model/unit_model.h"

// What the passes need to know of a model and a batch: sizes and costs, nothing else.
namespace terrace {

// How the states are divided over data-parallel ranks: ZeRO (Rajbhandari et al. 2020,
// arXiv:1910.02054). Stage 0 divides nothing, 1 the optimizer state, 2 also gradients, 3 also
// parameters. With one rank all stages are the same.
struct ZeroSharding {
  std::int32_t stage = 0;
  std::int32_t ranks = 1;
  std::int32_t rank = 0;

  bool of(StateClass state) const { return ranks > 1 && stage >= info_of(state).divided_from; }
  bool of_optimizer() const { return of(StateClass::kOptimizer); }
  bool of_gradients() const { return of(StateClass::kGradients); }
  bool of_parameters() const { return of(StateClass::kParameters); }
};

// Which units each stage of a pipeline has. The model is cut into pieces, of which piece n has the
// units from first_units[n] to first_units[n + 1]; stage s has the pieces s, s + stages, ..., as
// many as there are virtual stages. So the first stage begins with the embedding and the last ends
// with the head. With one stage there is nothing to say.
struct PipelineCut {
  std::int32_t stages = 1;
  std::int32_t stage = 0;  // this rank's
  std::vector<std::int32_t> first_units;
  std::int32_t virtual_stages = 1;  // pieces of a stage

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  std::int32_t pieces() const { return stages * virtual_stages; }
  std::int32_t stage_of(std::int32_t unit) const;
};

// A compute task of a schedule that comes from outside. A head's forward is all that it computes.
struct StepTask {
  UnitPass pass = UnitPass::kForward;  // or kBackward
  std::int32_t unit = 0;
  std::int32_t micro_batch = 0;

  friend bool operator==(const StepTask&, const StepTask&) = default;
};

// Elements of a chunk.
struct ChunkPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// A model as one rank trains it.
struct StepModel : ComputeModel {
  // Of finished gradients, between ranks and at home; sums over micro-batches are fp32.
  DType gradient_type = DType::kF32;
  StateFormat state_format;  // of the optimizer state
  bool scales_loss = false;  // the head reads a scale, which the norm of each step changes
  std::int64_t chunk_elements = kChunkElements;
  ZeroSharding zero;
  PipelineCut pipeline;
  // The compute of a step in order, where that comes from outside (runtime/step/task_schedule.h);
  // empty: the schedule pass has an order of its own.
  std::vector<StepTask> tasks;
  // What stages tell each other of a tied embedding's update passes in host memory, though it may
  // be at home elsewhere at one end and not at the other: devices exchange their own memory only.
  bool updates_meet_on_host = false;

  StepModel() = default;
  explicit StepModel(ComputeModel model) : ComputeModel(std::move(model)) {}

  std::size_t unit_count() const { return units.size(); }
  // The last unit, be it a head or not.
  std::int32_t head() const { return static_cast<std::int32_t>(units.size()) - 1; }
  bool is_embedding(std::int32_t unit) const { return units.at(unit).kind == UnitKind::kEmbedding; }
  bool is_head(std::int32_t unit) const { return units.at(unit).kind == UnitKind::kHead; }
  std::size_t parameter_bytes() const { return size_of(compute_type); }  // per element
  bool rounds_gradients() const { return gradient_type != DType::kF32; }
  // Bytes that a state of so many elements takes at home; not of activations, whose size is no
  // matter of elements.
  std::size_t state_bytes(StateClass state, std::int64_t elements) const;
  // Whether the state of a unit is at home on this rank at all, and how many of the unit's chunks
  // have such a state: the first ones.
  bool has_home(StateClass state, std::int32_t unit) const;
  std::int64_t home_chunks(StateClass state, std::int32_t unit) const;
  // What the home of a state has of a chunk. Gradients may be at home in parts also where this says
  // that they are whole: Homes::is_sharded() (runtime/step/homes.h).
  ChunkPart home_part(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  std::size_t home_bytes(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  // Where a chunk lies in the home of a unit, which has its chunks one behind the other.
  std::size_t home_offset(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  // Chunks of a unit's flat sequence: first those of what trains, which gradients and optimizer
  // state have too, then those of what is frozen. None has both.
  std::int64_t chunks(std::int32_t unit) const;
  std::int64_t trained_chunks(std::int32_t unit) const;
  // Elements of the unit before a chunk, and of it: all are full but the last of either kind.
  std::int64_t chunk_begin(std::int32_t unit, std::int64_t chunk) const;
  std::int64_t chunk_size(std::int32_t unit, std::int64_t chunk) const;
  // The chunk that an element of the unit is in.
  std::int64_t chunk_of(std::int32_t unit, std::int64_t element) const;
  bool trains(std::int32_t unit) const { return units.at(unit).trained_elements() > 0; }
  // The lowest unit that trains. The backward ends there: units below have none.
  std::int32_t lowest_trained() const;
  // Whether the head adds to a gradient of the embedding's.
  bool has_tied_gradient() const;
  // A rank's equal part of a chunk; the whole chunk with one rank.
  ChunkPart shard(std::int32_t unit, std::int64_t chunk, std::int32_t rank) const;
  ChunkPart whole(std::int32_t unit, std::int64_t chunk) const {
    return {0, chunk_size(unit, chunk)};
  }
  // In this rank's stage.
  bool has_unit(std::int32_t unit) const {
    return pipeline.stages == 1 || pipeline.stage_of(unit) == pipeline.stage;
  }
  // The last stage has a copy of a tied embedding's parameters for its head.
  bool has_copy_of_embedding() const { return tied && pipeline.stages > 1 && pipeline.is_last(); }
  bool has_parameters(std::int32_t unit) const {
    const bool is_here = has_unit(unit) || (unit == 0 && has_copy_of_embedding());
    return is_here && units.at(unit).padded_elements > 0;
  }
  std::int32_t ranks() const { return zero.ranks * pipeline.stages * tensor.ranks; }
  // As in parallel/mesh.h: stages are outermost, tensor-parallel ranks innermost.
  std::int32_t rank_of(std::int32_t stage, std::int32_t data_rank, std::int32_t tensor_rank) const {
    return (stage * zero.ranks + data_rank) * tensor.ranks + tensor_rank;
  }
  // Norm partials that a rank of this stage computes of all units before this one, and of all.
  std::int64_t first_partial(std::int32_t unit) const {
    return partials_before(unit, pipeline.stage);
  }
  std::int64_t partials() const { return first_partial(static_cast<std::int32_t>(units.size())); }
  // Whether ranks compute partials that others do not have.
  bool gathers_partials() const {
    return zero.of_optimizer() || pipeline.stages > 1 || tensor.ranks > 1;
  }
  // The most that a rank of any stage computes.
  std::int64_t most_partials() const;

 private:
  std::int64_t partials_before(std::int32_t unit, std::int32_t stage) const;
};

}  // namespace terrace
