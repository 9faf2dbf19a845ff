#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/gradient_noise.h"

namespace terrace {

// The part of a checkpoint that belongs to the gradient noise scale.
struct NoiseRecord {
  // The number of micro-batches that each step has from a step on.
  struct Phase {
    std::int64_t micro_batches = 1;
    std::int64_t first_step = 1;

    friend bool operator==(const Phase&, const Phase&) = default;
  };

  GradientNoiseState noise;
  // The phases that --accumulation-schedule auto has chosen so far, in their order. The last one
  // may begin after the step of the checkpoint. Empty where the numbers are not chosen by the
  // noise.
  std::vector<Phase> phases;

  friend bool operator==(const NoiseRecord&, const NoiseRecord&) = default;
};

// Returns the record as a JSON object, with the exact values of its numbers.
std::string to_json(const NoiseRecord& record);
// Reads such an object. Throws a std::exception if it is none.
NoiseRecord parse_noise_record(const std::string& json);

}  // namespace terrace
