#pragma once

#include <cstdint>
#include <span>
#include <vector>

// The figures of the routers of a model in a step, from the sums that its layers of experts leave
// (RouterSums in kernels/expert_ops.h).
namespace terrace {

// Means and a maximum over the micro-batches of all data-parallel ranks. Only rows count that are
// not padding.
struct RouterFigures {
  // The loss that balances the experts, before its coefficient: with E experts, E times the sum
  // over the experts of f times P. f is how many of the rows of all layers have chosen the expert,
  // and P the sum of their probabilities of it, both divided by the number of these rows.
  double balance_loss = 0;
  // The z-loss, before its coefficient: the mean over the rows of all layers of L^2, with L the
  // logarithm of the sum of the exponentials of a row's router logits.
  double z_loss = 0;
  // The number of a layer's experts that some row of a micro-batch has chosen, as a mean over
  // layers too.
  double experts_touched = 0;
  // The largest share that one expert had of a layer's choices in a micro-batch.
  double expert_share_max = 0;

  friend bool operator==(const RouterFigures&, const RouterFigures&) = default;
};

// Adds the sums that some layers have left of a micro-batch (each as RouterSums has them) to
// `folded`, which the caller has set to zeros before the first layer. It has the numbers of a layer
// and two more: the number of experts that were chosen, added over the layers, and the largest
// share of an expert. Sums of fractions are added as multiples of 2^-24, so their order changes no
// bit.
void fold_router_sums(std::span<const double> of_layers, std::span<double> folded);

// Adds up the figures of a step. It serves one step after another, and allocates nothing after its
// constructor.
class RouterFigureSum {
 public:
  // `layers` is the number of layers with experts in all pipeline stages. `folded` is how many
  // numbers fold_router_sums() writes.
  RouterFigureSum(std::int32_t layers, std::int64_t folded);

  // Begins another step.
  void begin();
  // Adds the numbers that a pipeline stage has folded of a micro-batch.
  void add_stage(std::span<const double> folded);
  // Does the same with the sums of the stage's layers.
  void add_layers(std::span<const double> of_layers);
  // Ends a micro-batch, after all its stages.
  void end_micro_batch();
  RouterFigures figures() const;

 private:
  const std::int32_t layers_;
  std::vector<double> sums_;    // of the micro-batch so far
  std::vector<double> folded_;  // of a stage
  std::int64_t micro_batches_ = 0;
  RouterFigures total_;
};

}  // namespace terrace
