#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/model/model_config.h"

namespace terrace {

struct ParameterTensor;

// Where the elements of a parameter are in a stored tensor, if they are not neighbouring rows of
// it: element (row, column) of the parameter is element first + row * row_step + column *
// column_step of the stored tensor.
struct StoredElements {
  std::vector<std::int64_t> shape;  // of the stored tensor
  std::int64_t first = 0;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
};

// Returns the places of a parameter whose elements are spread over a stored tensor
// (ExpertStorage::kInterleaved), and nullopt for other parameters. Looks at the parameter's kind,
// expert, rows and columns alone.
std::optional<StoredElements> stored_elements(const ModelConfig& config,
                                              const ParameterTensor& tensor);

}  // namespace terrace
