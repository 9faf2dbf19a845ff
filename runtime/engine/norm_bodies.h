#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "optim/grad_norm.h"
#include "runtime/engine/op_bytes.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/model/option_names.h"
#include "runtime/step/router_figures.h"
#include "runtime/step/step_model.h"

namespace terrace {

// Takes elements [begin, begin + gradient.size()) of the finished gradient of a group. Called by
// the lane that updates.
using GradientSink =
    std::function<void(std::int32_t group, std::int64_t begin, std::span<const float> gradient)>;

// Says whether the updates of a step are given up and their gradients go to a sink instead.
class GivenUpUpdates {
 public:
  // From the norm of the next step on, gradients go to the sink. Null: steps update again. Called
  // with a sink while the norm is held, and with null after the updates of the last such step.
  void give_to(const GradientSink* sink) {
    sink_ = sink;
    if (sink == nullptr) is_giving_ = false;
  }
  // Called when the norm is finished: until then the last step updates.
  void begin() { is_giving_ = true; }
  const GradientSink* sink() const { return sink_; }
  bool is_giving() const { return is_giving_; }

 private:
  const GradientSink* sink_ = nullptr;
  bool is_giving_ = false;
};

// Returns the loss scale that an op reads.
LossScaleState loss_scale_of(const OpBytes& bytes, const Op& op);

// The options that the norm and the scalars of updates depend on.
struct NormOptionsOfStep {
  OptimizerOptions optimizer;
  OptionNames name_of_option = field_of_option;  // in errors
};

// The bodies of the ops that finish the norm of a step's gradients and set the scalars of updates.
// Used by the update lane.
class NormBodies {
 public:
  // Borrows all but the options.
  NormBodies(const OpBytes& bytes, const StepModel& model, const NormOptionsOfStep& options,
             GivenUpUpdates& gradients)
      : bytes_(bytes),
        model_(model),
        optimizer_(options.optimizer),
        name_of_option_(options.name_of_option),
        gradients_(gradients),
        router_(model.router_layers(), model.folded_router_sums()),
        noise_sums_(noise_sums_of_rank(model)) {}

  // Throws NotFinite if the gradient or the loss of a step is not a number and no lower loss scale
  // can help.
  void finish(const Op& op, const RunInput& input);
  // Sets the scalars of each update rule, which are those given and the rule's own: of its update
  // with this number.
  void set_step_scalars(const Op& op, StepScalars scalars, std::int64_t update_number,
                        double learning_rate);
  // Makes the norm of the next step wait until it is released. By any thread.
  void hold() { is_held_.store(true, std::memory_order_release); }
  void release() {
    is_held_.store(false, std::memory_order_release);
    is_held_.notify_all();
  }

 private:
  // Finishes the norm with a loss scale; `norm` is the gradients' norm before they are divided by
  // it.
  void finish_scaled(const Op& op, const RunInput& input, double loss, double norm);
  // Returns the norm of the gradient over all ranks.
  double norm_of_gradient(const Op& op) const;
  // Adds the partials of a group that a tensor-parallel rank has. `at` is the index of the group's
  // first among the rank's partials.
  void add_partials(const Op& op, std::int32_t group, std::int32_t tensor_rank, std::size_t at,
                    GradientNorm& norm) const;
  const double* sums_of_rank(const Op& op, std::int32_t rank) const;
  double sum_of_losses(const Op& op, const RunInput& input) const;
  // Returns what the routers of all ranks did; none in a model without experts.
  std::optional<RouterFigures> router_figures(const Op& op);
  // Returns the small batch of the step, whose gradients are multiplied by the scale; none where
  // the model does not measure noise.
  std::optional<SmallBatch> small_batch(const Op& op, const RunInput& input, double scale);

  const OpBytes bytes_;
  const StepModel& model_;
  const OptimizerOptions optimizer_;
  const OptionNames name_of_option_;
  GivenUpUpdates& gradients_;
  RouterFigureSum router_;
  std::vector<double> noise_sums_;  // of a rank alone
  std::atomic<bool> is_held_{false};
};

}  // namespace terrace
