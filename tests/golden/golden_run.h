#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "tests/golden/golden_case.h"

// The results that the runtime computes with the files of a golden case.
namespace terrace {

struct GoldenMesh {
  MeshShape shape;  // ranks are threads
  std::int32_t zero_stage = 0;
};

// Tensors by their names in model.safetensors, in the shapes that they have there.
using NamedTensors = std::map<std::string, std::vector<float>>;

struct GoldenRun {
  std::vector<double> losses;          // by step
  std::vector<double> gradient_norms;  // by step
  std::vector<double> balance_losses;  // by step, of a model with experts
  NamedTensors gradients;              // of the first step, before clipping
  NamedTensors after;                  // the parameters after the last step
};

// Trains with fp32 compute. Throws ConfigError for a config.json that is refused.
GoldenRun run_golden(const GoldenCase& golden, const GoldenMesh& mesh);

// Returns logits like GoldenCase::logits().
std::vector<float> golden_run_logits(const GoldenCase& golden);
// Returns the likeliest ids after the prompt, as many as the case has. They come from a model that
// keeps keys and values from token to token, or from a new one for each token.
std::vector<std::int32_t> continue_prompt(const GoldenCase& golden, bool keeps_keys);

}  // namespace terrace
