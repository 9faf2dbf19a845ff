#pragma once

#include <cstdint>

namespace terrace {

enum class RopeType : std::uint8_t { kDefault, kLinear, kLlama3 };

// How the angles of rotary position embeddings are made.
struct RopeOptions {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_positions = 8192;

  friend bool operator==(const RopeOptions&, const RopeOptions&) = default;
};

}  // namespace terrace
