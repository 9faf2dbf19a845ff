#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

enum class RopeType : std::uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

// How the angles of rotary position embeddings are made. Names and formulas follow transformers;
// docs/families.md has them. A field that the type does not use keeps its default.
struct RopeOptions {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // linear, dynamic, llama3, yarn
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  bool truncates = true;                   // yarn: the ramp begins and ends at whole numbers
  std::int64_t original_positions = 8192;  // llama3, yarn, longrope: positions before scaling
  std::int64_t positions = 0;              // dynamic: longer sequences have slower angles
  std::vector<double> short_factors = {};  // longrope: one for each frequency
  std::vector<double> long_factors = {};   // longrope: for sequences longer than original_positions
  double attention_factor = 1.0;           // yarn, longrope: multiplies all cosines and sines

  friend bool operator==(const RopeOptions&, const RopeOptions&) = default;
};

}  // namespace terrace
