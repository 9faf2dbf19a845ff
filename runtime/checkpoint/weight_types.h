#pragma once

#include <map>
#include <string>

#include "base/dtype.h"

namespace terrace {

// The types in which a model's weights are stored, by parameter: kF32, kBF16 or kF16.
struct WeightTypes {
  DType usual = DType::kBF16;  // of most elements; the dtype in config.json
  // The parameters of another type, by ParameterTensor::name. Parameters that share a stored name
  // have one type.
  std::map<std::string, DType> others = {};

  DType of(const std::string& parameter) const {
    const auto found = others.find(parameter);
    return found == others.end() ? usual : found->second;
  }
  friend bool operator==(const WeightTypes&, const WeightTypes&) = default;
};

// Returns "float32", "bfloat16" or "float16", as in config.json.
const char* torch_name_of(DType dtype);
// Returns the type of such a name. Throws std::invalid_argument for another name.
DType parse_torch_name(const std::string& name);

}  // namespace terrace
