#pragma once

#include <cstdint>
#include <optional>

#include "kernels/quantized_matrix.h"
#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"
#include "runtime/model/tensor_split.h"

namespace terrace {

// How the frozen matrices of blocks and of their experts are kept: in the compute type, or
// quantised. All other parameters are in the compute type, and so are routers.
struct BaseStorage {
  std::optional<QuantizedForm> form;  // unset: not quantised
  std::int64_t element_bytes = 2;     // of the compute type
};

// Throws ConfigError, naming a matrix and a remedy, where a tensor-parallel rank's part of a matrix
// that is to be quantised would not consist of whole blocks.
void check_quantized_parts(const ModelConfig& config, const BaseStorage& storage,
                           const TensorSplit& split, OptionNames name_of_option = field_of_option);

}  // namespace terrace
