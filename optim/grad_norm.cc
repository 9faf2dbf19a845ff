#include "optim/grad_norm.h"

#include <cmath>

namespace terrace {

double gradient_norm(std::span<const double> partials) {
  double sum = 0.0;
  for (const double partial : partials) sum += partial;
  return std::sqrt(sum);
}

float clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0.0 || norm <= max_norm) return 1.0F;
  return static_cast<float>(max_norm / (norm + 1e-6));
}

}  // namespace terrace
