#include "base/philox.h"

#include <cmath>
#include <numbers>

namespace terrace {

float normal_from_bits(std::uint32_t a, std::uint32_t b) {
  const float u = 1.0F - uniform_from_bits(a);
  const float angle = 2.0F * std::numbers::pi_v<float> * uniform_from_bits(b);
  return std::sqrt(-2.0F * std::log(u)) * std::cos(angle);
}

}  // namespace terrace
