#include "runtime/model/option_names.h"

#include <array>

namespace terrace {

std::string_view field_of_option(Option option) {
  constexpr std::array<std::string_view, kOptionCount> kFields = {
      "budgets.device",
      "budgets.host",
      "budgets.nvme",
      "nvme.directories",
      "threads",
      "batch.sequences",
      "batch.positions",
      "placement.recompute",
      "compute_type",
      "ranks.shape.tensor",
      "sequence_parallel",
      "learning_rate",
      "model.trainable",
      "evaluates = false",
      "base_quantization",
      "experts_per_group",
      "model.experts.balance_coefficient",
      "model.experts.z_coefficient",
      "placement.micro_batches",
      "measures_gradient_noise",
      "wire.gradients",
      "wire.parameters",
      "wire.keeps_errors"};
  return kFields.at(static_cast<std::size_t>(option));
}

}  // namespace terrace
