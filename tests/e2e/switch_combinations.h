#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/e2e/tiny_training.h"

// Settings of all the switches that must not change bits.
namespace terrace {

struct SwitchCombination {
  std::string precision;
  bool has_device = false;  // an arena of its own; else unified mode
  std::string parameters;   // where they live
  std::string gradients;
  std::string optimizer;
  std::string activations;
  std::string recompute;
  std::string order;
  std::string lookahead;
  std::string threads;
  std::string io_engine;
  std::string master_weights;
  bool is_tight = false;  // with a device, the smallest that this fits in

  bool uses_nvme() const;
  // Without --device-memory.
  Arguments arguments() const;
};

// Few combinations in which every two settings of every two switches come together.
std::vector<SwitchCombination> all_pairs(std::uint64_t seed);
std::vector<SwitchCombination> random_combinations(std::uint64_t seed, int count);

// Trains with the combination and expects the rows and the final model of the run `reference`, that
// the columns of traffic show the switches at work, and that nothing stays on the drive.
void expect_bits_of(const TinyTraining& training, const SwitchCombination& combination,
                    const std::string& run, const std::string& reference);

}  // namespace terrace
