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
  bool is_tight = false;  // with a device: the smallest budgets that this fits in

  bool uses_nvme() const;
  // Returns the flags without --device-memory.
  Arguments arguments() const;
};

// Returns a small number of combinations that together have every pair of settings of every two
// switches.
std::vector<SwitchCombination> all_pairs(std::uint64_t seed);
std::vector<SwitchCombination> random_combinations(std::uint64_t seed, int count);

// Trains with the combination. Expects the rows and the final model of the run `reference`, columns
// of traffic that show the switches at work, and nothing that stays on the drive.
void expect_bits_of(const TinyTraining& training, const SwitchCombination& combination,
                    const std::string& run, const std::string& reference);

}  // namespace terrace
