#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"

// A model and the results of transformers for it, as tests/golden/make_cases.py has written them.
namespace terrace {

// The distances, as norms of differences, between results of transformers that differ by roundings.
struct GoldenSpread {
  double logits = 0;
  std::vector<double> losses;          // by step
  std::vector<double> gradient_norms;  // by step
  std::vector<double> balance_losses;  // by step, as GoldenCase::balance_losses
  std::map<std::string, double> gradients;
  std::map<std::string, double> after;
};

class GoldenCase {
 public:
  // Reads `directory`. Throws IoError, CorruptData, or nlohmann::json::exception for a golden.json
  // that lacks something.
  explicit GoldenCase(const std::string& directory);

  // The model's directory, as users have it: config.json and model.safetensors.
  std::string directory;
  // In a case with an adapter, the adapter's directory as PEFT saves it. Gradients and parameters
  // are then the adapter's. Empty if there is no adapter.
  std::string adapter;
  std::int64_t micro_batches = 0;
  std::int64_t sequences = 0;  // of a micro-batch
  std::int64_t positions = 0;
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0, max_grad_norm = 0;
  // Lists by step: [micro-batches, sequences, positions]. Targets that do not count are negative.
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<std::int32_t>> targets;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> continuation;  // the likeliest ids after it
  std::vector<double> losses;              // by step, nats per target
  std::vector<double> gradient_norms;      // by step, before clipping
  // By step, the mean over the micro-batches of the loss that balances experts, before its
  // coefficient. Empty where config.json does not ask for it.
  std::vector<double> balance_losses;
  GoldenSpread spread;

  std::int64_t steps() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t rows() const { return sequences * positions; }

  // Returns the logits of the first micro-batch, [sequences, positions, vocabulary].
  std::vector<float> logits() const { return tensor("logits"); }
  // Returns a gradient of the first step, before clipping.
  std::vector<float> gradient(const std::string& name) const { return tensor("gradient." + name); }
  // Returns a parameter after the last step.
  std::vector<float> after(const std::string& name) const { return tensor("after." + name); }

 private:
  std::vector<float> tensor(const std::string& name) const;

  std::unique_ptr<SafetensorsFile> tensors_;
};

// Returns the fp32 values of a tensor of a file. Throws std::out_of_range for a name that is not
// there.
std::vector<float> read_f32(const SafetensorsFile& file, const std::string& name);

// Returns the names of all cases, sorted.
std::vector<std::string> golden_case_names();
std::string golden_case_directory(const std::string& name);
// Returns the names of the cases with an adapter, sorted, as make_adapters.py has written them.
std::vector<std::string> golden_adapter_names();
std::string golden_adapter_directory(const std::string& name);
// Returns the directory of the model whose experts are in MXFP4 (make_mxfp4.py).
std::string golden_mxfp4_directory();

}  // namespace terrace
