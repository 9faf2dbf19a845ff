#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "runtime/model/parameter_layout.h"

// Random numbers for tests of blocks.
namespace terrace {

// Returns normal numbers around 0 from a seed.
inline std::vector<float> random_numbers(std::size_t count, std::uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns random values of the first block in its flat sequence: norms and magnitudes around 1, all
// else around 0.
inline std::vector<float> random_block(const ModelConfig& config) {
  const UnitLayout block = parameter_layout(config).at(1);
  std::vector<float> values =
      random_numbers(static_cast<std::size_t>(block.padded_elements), 3, 0.2F);
  for (const ParameterTensor& tensor : block.tensors) {
    if (tensor.init != Init::kOnes) continue;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      values[static_cast<std::size_t>(tensor.offset + i)] += 1.0F;
    }
  }
  return values;
}

}  // namespace terrace
