#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/state_class.h"
#include "runtime/step/chunked_model.h"

// All that the passes need to know of a model and a batch: sizes and costs.
namespace terrace {

// The units that each stage of a pipeline has. The model is cut into pieces: piece n has the units
// from piece_begins[n] up to piece_begins[n + 1]. Stage s has the pieces s, s + stages, ..., as
// many as there are virtual stages. So the first stage begins with the embedding and the last stage
// ends with the head. With one stage the model is not cut.
struct PipelineCut {
  std::int32_t stages = 1;
  std::int32_t stage = 0;  // this rank's
  std::vector<std::int32_t> piece_begins;
  std::int32_t virtual_stages = 1;  // pieces per stage

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

// A model as one rank trains it.
struct StepModel : ChunkedModel {
  bool scales_loss = false;  // the head reads a scale, which each step's norm may change
  // Whether a step also computes the squared norm of the gradient of a small batch, for the
  // gradient noise scale. With several data-parallel ranks the samples of each rank are a small
  // batch; with one rank the first micro-batch is.
  bool measures_noise = false;
  PipelineCut pipeline;
  // The compute of a step in order, if that order comes from outside (runtime/step/task_order.h).
  // If empty, the schedule pass makes the order.
  std::vector<StepTask> tasks;
  // Whether updated parameters that units of two pipeline stages use pass between the stages in
  // host memory, even where their home is elsewhere. It may be elsewhere at one end and not at the
  // other, and devices exchange only their own memory.
  bool updates_meet_on_host = false;

  StepModel() = default;
  explicit StepModel(ComputeModel model) : ChunkedModel(std::move(model)) {}

  std::size_t unit_count() const { return units.size(); }
  // Returns the last unit, whether or not it is a head.
  std::int32_t last_unit() const { return static_cast<std::int32_t>(units.size()) - 1; }
  // Returns whether the state of a group is at home on this rank at all.
  bool has_home(StateClass state, std::int32_t group) const;
  // These two are as in UnitModel.
  bool fuses_passes(std::int32_t unit) const { return units.at(unit).fuses_passes(); }
  bool joins_micro_batches(std::int32_t unit) const { return units.at(unit).joins_micro_batches(); }
  // Returns whether a group of the unit's own trains.
  bool trains(std::int32_t unit) const;
  // Returns whether the unit uses the group, as its own or as another unit's.
  bool uses(std::int32_t unit, std::int32_t group) const;
  // Returns the lowest unit that trains. The backward ends there: the units below have none.
  std::int32_t lowest_trained() const;
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
  // Returns whether the unit leaves sums of a router.
  bool leaves_router_sums(std::int32_t unit) const;
  // Return how many units of all pipeline stages do so: of those before this unit, and in all.
  std::int32_t router_layers_before(std::int32_t unit) const;
  std::int32_t router_layers() const { return router_layers_before(last_unit() + 1); }
  // Returns whether pipeline stages need the sums of routers that units of other stages leave.
  bool passes_router_sums() const;
  // Returns whether they do, and some of the units [begin, end) leave such sums.
  bool passes_router_sums(std::int32_t begin, std::int32_t end) const;
  // Returns whether this pipeline stage has the sums of routers of a step: its own, or all.
  bool has_router_sums() const;
  // Returns the numbers of a micro-batch that a rank contributes to the step's router figures
  // (runtime/step/router_figures.h).
  std::int64_t folded_router_sums() const { return router_sums == 0 ? 0 : router_sums + 2; }
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
  std::int64_t partials_before(std::int32_t group, std::int32_t stage) const;
};

}  // namespace terrace
