#include "optim/grad_norm.h"

#include <cmath>

namespace terrace {

void GradientNorm::add(std::span<const double> partials) {
  for (const double partial : partials) sum_ += partial;
}

double GradientNorm::value() const { return std::sqrt(sum_); }

float clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0.0 || norm <= max_norm) return 1.0F;
  return static_cast<float>(max_norm / (norm + 1e-6));
}

}  // namespace terrace
