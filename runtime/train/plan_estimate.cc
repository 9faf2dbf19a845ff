#include "runtime/train/plan_estimate.h"

#include <algorithm>
#include <limits>

#include "parallel/pipeline_schedule.h"
#include "runtime/step/lane.h"

namespace terrace {
namespace {

constexpr double kGradientBytes = 4;  // of a parameter, while micro-batches add to it
constexpr double kOpsOfChunk = 8;     // that move, sum and update it in a step

// The exchanges and compute ops of a pass.
struct PassCost {
  double exchange_bytes = 0;
  int ops = 0;
};

PassCost cost_of_pass(const StepModel& model, const std::vector<UnitStep>& pass) {
  const auto ranks = static_cast<double>(model.tensor.ranks);
  const double whole =
      static_cast<double>(model.tensor.shares_rows ? model.tensor.rows_bytes : model.hidden_bytes);
  PassCost cost;
  for (const UnitStep& step : pass) {
    if (step.kind == UnitStep::Kind::kCompute) {
      ++cost.ops;
      continue;
    }
    const bool is_sum_in_place = step.kind == UnitStep::Kind::kSum && !model.tensor.shares_rows;
    cost.exchange_bytes += whole * (ranks - 1) / ranks * (is_sum_in_place ? 2 : 1);
  }
  return cost;
}

UnitCost cost_of_unit(const StepModel& model, const UnitModel& unit) {
  UnitCost cost;
  const PassCost forward = cost_of_pass(model, unit.forward);
  const PassCost backward = cost_of_pass(model, unit.backward);
  const PassCost recompute = cost_of_pass(model, unit.recompute);
  cost.backward_flops = unit.backward_flops;
  cost.backward_exchange_bytes = backward.exchange_bytes;
  cost.backward_ops = std::max(1, backward.ops);
  cost.saved_bytes = static_cast<double>(unit.saved_bytes);
  if (unit.fuses_passes()) return cost;
  cost.forward_flops = unit.forward_flops;
  cost.forward_exchange_bytes = forward.exchange_bytes;
  cost.forward_ops = std::max(1, forward.ops);
  if (unit.joins_micro_batches()) return cost;
  for (const UnitStep& step : unit.recompute) cost.recompute_flops += step.flops;
  cost.recompute_exchange_bytes = recompute.exchange_bytes;
  cost.recompute_ops = recompute.ops;
  return cost;
}

// The work of one micro-batch on a pipeline stage, and the state that the stage has.
struct StageCost {
  double speed = 1;
  double seconds = 0;            // without computing forwards again
  double recompute_seconds = 0;  // that this adds
  double saved_bytes = 0;
  double hidden_bytes = 0;
  double elements = 0;
};

class Estimate {
 public:
  Estimate(const ModelCost& model, const PlanChoice& choice, const RankMeans& means)
      : model_(model),
        choice_(choice),
        means_(means),
        tensor_(link_of(means.profile, MeshAxis::kTensor)),
        data_(link_of(means.profile, MeshAxis::kData)) {}

  double step_s() const {
    const std::vector<StageCost> stages = cut();
    double longest = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      longest = std::max(longest, stage_s(stages[s], static_cast<int>(s)));
    }
    return longest;
  }

 private:
  double count() const { return static_cast<double>(choice_.micro_batches); }

  double compute_s(double flops, int ops, double exchange_bytes) const {
    return flops / means_.profile.flops_per_s + ops * means_.profile.op_overhead_s +
           exchange_bytes / tensor_.bytes_per_s;
  }

  std::vector<StageCost> cut() const {
    std::vector<double> costs;
    for (const UnitCost& unit : model_.units) {
      costs.push_back(unit.forward_flops + unit.backward_flops);
    }
    const int pieces = choice_.pipeline * choice_.virtual_stages;
    const std::vector<int> begins = balance_stages(costs, pieces, choice_.stage_speeds);
    std::vector<StageCost> stages(static_cast<std::size_t>(choice_.pipeline));
    for (std::size_t s = 0; s < means_.stage_speeds.size(); ++s) {
      stages.at(s).speed = means_.stage_speeds[s];
    }
    for (int piece = 0; piece < pieces; ++piece) {
      StageCost& stage = stages[static_cast<std::size_t>(piece % choice_.pipeline)];
      const auto begin = static_cast<std::size_t>(piece);
      for (int u = begins[begin]; u < begins[begin + 1]; ++u) {
        add(model_.units[static_cast<std::size_t>(u)], stage);
      }
    }
    return stages;
  }

  void add(const UnitCost& unit, StageCost& stage) const {
    stage.seconds +=
        compute_s(unit.forward_flops / stage.speed, unit.forward_ops, unit.forward_exchange_bytes) +
        compute_s(unit.backward_flops / stage.speed, unit.backward_ops,
                  unit.backward_exchange_bytes);
    stage.recompute_seconds += compute_s(unit.recompute_flops / stage.speed, unit.recompute_ops,
                                         unit.recompute_exchange_bytes);
    stage.saved_bytes += unit.saved_bytes;
    stage.hidden_bytes += model_.hidden_bytes;
    stage.elements += unit.elements;
  }

  double divided(double bytes, int from_stage) const {
    return choice_.zero_stage >= from_stage ? bytes / choice_.data : bytes;
  }

  double stage_s(const StageCost& stage, int number) const {
    double shortest = std::numeric_limits<double>::infinity();
    for (const bool is_layer_major : {false, true}) {
      for (const bool recomputes : {false, true}) {
        const Way way{is_layer_major, recomputes};
        if (is_allowed(way)) shortest = std::min(shortest, stage_s(stage, number, way));
      }
    }
    return shortest;
  }

  // The choices that the planner makes by itself where they are left open.
  struct Way {
    bool is_layer_major = false;
    bool recomputes = false;
  };

  bool is_allowed(const Way& way) const {
    const OrderChoice other =
        way.is_layer_major ? OrderChoice::kMicroBatchMajor : OrderChoice::kLayerMajor;
    if (choice_.order == other || (way.is_layer_major && choice_.pipeline > 1)) return false;
    return choice_.recompute != (way.recomputes ? RecomputeChoice::kNone : RecomputeChoice::kFull);
  }

  // Returns the micro-batches whose activations a stage holds at a time.
  double held(int stage, const Way& way) const {
    if (choice_.pipeline == 1) return way.is_layer_major ? count() : 1;
    if (choice_.schedule == PipelineSchedule::kGpipe) return count();
    const double in_pipeline = choice_.pipeline - stage;
    return std::min(count(), in_pipeline * (choice_.virtual_stages > 1 ? 1.5 : 1.0));
  }

  // Returns whether a gradient is finished as soon as its unit's backward is done. Otherwise it is
  // held as a whole until the last micro-batch.
  bool finishes_units(const Way& way) const {
    return way.is_layer_major || choice_.micro_batches == 1;
  }

  double stage_s(const StageCost& stage, int number, const Way& way) const {
    const double optimizer = divided(stage.elements * model_.bytes_of_optimizer, 1);
    const double gradients = stage.elements * kGradientBytes;
    const double state = optimizer + divided(stage.elements * model_.bytes_per_parameter, 3) +
                         (finishes_units(way) ? divided(gradients, 2) : gradients);
    const double kept =
        (way.recomputes ? stage.hidden_bytes : stage.saved_bytes) * held(number, way);
    const double away = std::max(0.0, state + kept - means_.fast_bytes);
    if (away > means_.other_bytes) return std::numeric_limits<double>::infinity();
    const double micro_batch_s = stage.seconds + (way.recomputes ? stage.recompute_seconds : 0);
    const double bubbles = static_cast<double>(choice_.pipeline - 1) / choice_.virtual_stages;
    const double of_updates = std::min(away, optimizer);
    const double times = finishes_units(way) ? 1 : count();
    const double moving =
        2 * (of_updates + (away - of_updates) * times) / means_.profile.upload_bytes_per_s;
    const double messages_s = message_s() * choice_.virtual_stages;
    const double computing = std::max(micro_batch_s, messages_s) * count() +
                             micro_batch_s * bubbles + 2 * message_s() * (choice_.pipeline - 1);
    return std::max(computing, moving) + exposed_s(stage, micro_batch_s, way) +
           update_s(stage, away);
  }

  // Returns the time of a message to the next pipeline stage, or back.
  double message_s() const {
    const LinkRate& link = link_of(means_.profile, MeshAxis::kPipeline);
    return choice_.pipeline == 1 ? 0 : model_.hidden_bytes / link.bytes_per_s + link.latency_s;
  }

  // Returns the time of collectives between data-parallel ranks that compute does not hide.
  double exposed_s(const StageCost& stage, double micro_batch_s, const Way& way) const {
    if (choice_.data == 1) return 0;
    const double part = static_cast<double>(choice_.data - 1) / choice_.data;
    const double gathers = stage.elements * model_.bytes_per_parameter * part;
    const double sums = stage.elements * kGradientBytes * part;
    const double times = choice_.zero_stage < 3 ? 1 : finishes_units(way) ? 2 : 2 * count();
    const double all_s = (times * gathers + sums) / data_.bytes_per_s;
    const bool spreads = choice_.zero_stage == 3 || way.is_layer_major;
    return std::max(0.0, all_s - micro_batch_s * (spreads ? count() : 1));
  }

  double update_s(const StageCost& stage, double away) const {
    const double bytes = divided(stage.elements * (model_.bytes_of_optimizer + kGradientBytes), 1);
    const double on_host = away > 0 ? bytes / means_.profile.update_bytes_per_s : 0;
    return bytes / (means_.profile.compute_bytes_per_s * stage.speed) + on_host;
  }

  const ModelCost& model_;
  const PlanChoice& choice_;
  const RankMeans& means_;
  const LinkRate& tensor_;
  const LinkRate& data_;
};

}  // namespace

ModelCost cost_of_model(const StepModel& model) {
  ModelCost cost;
  cost.hidden_bytes = static_cast<double>(model.hidden_bytes);
  for (const UnitModel& unit : model.units) cost.units.push_back(cost_of_unit(model, unit));
  double parameters = 0;
  double optimizer = 0;
  double elements = 0;
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    const ParameterGroup& group = model.groups[static_cast<std::size_t>(g)];
    const std::int64_t trained = group.trained_elements();
    cost.units[static_cast<std::size_t>(group.unit)].elements += static_cast<double>(trained);
    cost.units[static_cast<std::size_t>(group.unit)].chunks += static_cast<double>(model.chunks(g));
    elements += static_cast<double>(group.padded_elements);
    parameters += static_cast<double>(model.group_bytes(g));
    optimizer += static_cast<double>(model.state_bytes(StateClass::kOptimizer, g, trained));
  }
  if (elements > 0) {
    cost.bytes_per_parameter = parameters / elements;
    cost.bytes_of_optimizer = optimizer / elements;
  }
  return cost;
}

double estimated_step_s(const ModelCost& model, const PlanChoice& choice, const RankMeans& means) {
  return Estimate(model, choice, means).step_s();
}

double estimated_ops(const ModelCost& model, const PlanChoice& choice) {
  double of_micro_batch = 4.0 * choice.pipeline * choice.virtual_stages;  // messages
  double of_state = 0;
  for (const UnitCost& unit : model.units) {
    const int exchanges = choice.tensor > 1 ? 2 : 1;
    of_micro_batch += exchanges * (unit.forward_ops + unit.backward_ops);
    of_state += kOpsOfChunk * unit.chunks;
  }
  const bool has_period = choice.pipeline == 1 && choice.tensor == 1;
  const auto repeated = static_cast<double>(choice.micro_batches);
  return of_state + of_micro_batch * (has_period ? std::min(repeated, 4.0) : repeated);
}

}  // namespace terrace
