#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/model/model_config.h"

namespace terrace {

struct ParameterTensor;

// Where the elements of a parameter are in a stored tensor of which it is not whole rows: element
// (row, column) is the element first + row * row_step + column * column_step.
struct StoredElements {
  std::vector<std::int64_t> shape;  // of the stored tensor
  std::int64_t first = 0;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
};

// Returns the place of a parameter that is stored with others in a tensor of which it is not whole
// rows (ExpertStorage); none for other parameters. Looks at the kind, the expert and the sizes.
std::optional<StoredElements> stored_elements(const ModelConfig& config,
                                              const ParameterTensor& tensor);

}  // namespace terrace
