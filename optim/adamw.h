#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"
#include "optim/update_rule.h"

namespace terrace {

struct AdamWOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;  // decoupled (Loshchilov and Hutter, 2019)

  operator RuleOptions() const { return {{beta1, beta2, epsilon}, weight_decay}; }
};

// AdamW, one pass over the elements. Written as correctly rounded fp32 operations in
// this order, the same on every processor (fma only where said):
//   g  = gradient * gradient_scale
//   m  = fma(1 - beta1, g - m, m)
//   v  = fma(1 - beta2, g * g - v, v)
//   mh = m * (1 / bias_correction_1)
//   d  = sqrt(v * (1 / bias_correction_2)) + epsilon
//   p  = fma(-learning_rate * weight_decay, p, p)
//   p  = fma(-learning_rate, mh / d, p)
// 1 - beta, 1 / bias_correction and learning_rate * weight_decay are rounded to fp32 first:
// divisions are what an update would wait for. Denormals are kept. m is the first slot, v the
// second; 1 - beta1^t and 1 - beta2^t of the t-th update, computed in fp64, are its scalars.
const UpdateRule& adamw_rule();

// Scalar definition.
void adamw_reference(const ParameterUpdate& update);
// Highway + workers, the same bits.
void adamw_cpu(const KernelContext& context, const ParameterUpdate& update);
// Likewise, of the elements [begin, end) by the caller alone; both are multiples of kMomentBlock,
// or the end of all.
void adamw_cpu_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end);

}  // namespace terrace
