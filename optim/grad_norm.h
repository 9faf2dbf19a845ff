#pragma once

#include <span>

namespace terrace {

// The 2-norm of the whole gradient from the fp64 sums of squares of its 4Ki-element blocks, which
// are to be added in global (unit, block) order.
class GradientNorm {
 public:
  void add(std::span<const double> partials);
  double value() const;

 private:
  double sum_ = 0.0;
};

// Returns the factor that gradients are multiplied by: 1 if max_norm is 0 (off) or the norm is
// within it, else max_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_.
float clip_coefficient(double norm, double max_norm);

}  // namespace terrace
