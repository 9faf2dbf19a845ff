#include "runtime/model/stored_elements.h"

#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

// Letters: E experts, I their intermediate size, C the width.

// Gate and up are stored as [E, C, 2I] and down as [E, I, C], so rows are columns in files.
StoredElements of_matrix(const ModelConfig& config, const ParameterTensor& tensor) {
  const std::int64_t E = config.experts.count;
  const std::int64_t I = config.experts.intermediate;
  const std::int64_t C = config.width;
  if (tensor.kind == ParameterKind::kExpertDown) {
    return {.shape = {E, I, C}, .first = tensor.expert * I * C, .row_step = 1, .column_step = C};
  }
  const std::int64_t first = tensor.kind == ParameterKind::kExpertGate ? 0 : 1;
  return {.shape = {E, C, 2 * I},
          .first = tensor.expert * C * 2 * I + first,
          .row_step = 2,
          .column_step = 2 * I};
}

// The biases of gate and up are stored as [E, 2I].
StoredElements of_bias(const ModelConfig& config, const ParameterTensor& tensor) {
  const std::int64_t I = config.experts.intermediate;
  return {.shape = {config.experts.count, 2 * I},
          .first = tensor.kind == ParameterKind::kExpertGateBias ? 0 : 1,
          .row_step = 2 * I,
          .column_step = 2};
}

}  // namespace

std::optional<StoredElements> stored_elements(const ModelConfig& config,
                                              const ParameterTensor& tensor) {
  if (config.experts.storage != ExpertStorage::kInterleaved) return std::nullopt;
  if (is_of_expert(tensor.kind)) return of_matrix(config, tensor);
  const bool is_bias =
      tensor.kind == ParameterKind::kExpertGateBias || tensor.kind == ParameterKind::kExpertUpBias;
  return is_bias ? std::optional(of_bias(config, tensor)) : std::nullopt;
}

}  // namespace terrace
