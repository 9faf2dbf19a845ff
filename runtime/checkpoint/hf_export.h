#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/function_ref.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

struct HfExportOptions {
  std::string directory;  // made when it is not there
  WeightTypes types = {};
  std::uint64_t max_shard_bytes = 5'000'000'000;  // a larger tensor gets a shard of its own
  std::vector<HfCompanion> companions = {};
};

// Gives elements [begin, begin + out.size()) of a parameter as fp32, in its own layout.
using FetchParameter = FunctionRef<void(const UnitLayout& unit, const ParameterTensor& tensor,
                                        std::int64_t begin, std::span<float> out)>;

// Writes config.json (the model's, with only its dtype key changed) and model.safetensors, or
// shards with an index. Parameters that share a stored name become the rows of one tensor, which is
// in one shard and of one type. Parameters are fetched in the layout's order, each from front to
// back in ranges of bounded size. Those of a tensor with StoredElements are fetched where the first
// of them stands; they, and a tensor stored transposed, are fetched more than once if a matrix
// exceeds 64 MiB. bf16 rounds ties away from zero, as parameters do everywhere. config.json is
// written last, with the usual type as its dtype. Throws IoError. Throws ConfigError for a finite
// value that its type has no number for, and for a model with an adapter, because adapters are
// stored by themselves (adapter_directory.h).
void write_hf_directory(const HfExportOptions& options, const ModelConfig& config,
                        const std::vector<UnitLayout>& layout, FetchParameter fetch);

// Writes the tensors of a layout to one safetensors file, by their stored names. Fetches, rounds
// and throws as write_hf_directory() does.
void write_hf_tensors(const std::string& path, const WeightTypes& types,
                      const std::vector<UnitLayout>& layout, FetchParameter fetch);

// Returns `json`, which may have numbers like Infinity, with its dtype key ("dtype" or
// "torch_dtype") set to `dtype`; unchanged if it is set so already.
std::string config_json_with_dtype(const std::string& json, DType dtype);

}  // namespace terrace
