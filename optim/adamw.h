#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/kernel_context.h"
#include "memory/tensor.h"
#include "optim/moment_code.h"
#include "optim/state_format.h"

namespace terrace {

// What every update of one step shares. Made once a step from the schedule and the gradient norm,
// and then moved as bytes to where updates run.
struct StepScalars {
  float learning_rate = 0;
  float gradient_scale = 1;     // clip coefficient, times 1/loss scale: g' = g * gradient_scale
  float bias_correction_1 = 1;  // 1 - beta1^t
  float bias_correction_2 = 1;  // 1 - beta2^t
  std::uint32_t step = 0;       // counted from 1
  std::uint32_t skips = 0;      // 1: gradients overflowed, and updates leave all as it is
};

struct AdamWOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;  // decoupled (Loshchilov and Hutter, 2019)
};

// Sets the bias corrections of a run's n-th update, n = `updates`, computed in fp64.
void set_bias_corrections(StepScalars& scalars, const AdamWOptions& options, std::int64_t updates);

// One pass over n elements, all views 1-D of n. Written as correctly rounded fp32 operations in
// this order, the same on every processor (fma only where said):
//   g  = gradient * gradient_scale
//   m  = fma(1 - beta1, g - m, m)
//   v  = fma(1 - beta2, g * g - v, v)
//   mh = m * (1 / bias_correction_1)
//   d  = sqrt(v * (1 / bias_correction_2)) + epsilon
//   p  = fma(-learning_rate * weight_decay, p, p)
//   p  = fma(-learning_rate, mh / d, p)
// 1 - beta, 1 / bias_correction and learning_rate * weight_decay are rounded to fp32 first:
// divisions are what an update would wait for. Denormals are kept. What p is before and after, by
// the views:
//   fp32 master, bf16 parameter   the master; the parameter gets it rounded ties-away
//   fp32 master, fp16 parameter   likewise, to nearest even
//   fp32 master, fp32 parameter   the master; the parameter gets it, and may be the same view
//   i16 master, bf16 parameter    the two together: join() and split() of base/half.h
// m and v are widened before and rounded behind this, where they are stored in fewer bits: bf16, or
// codes of 8 bits (optim/moment_code.h) of blocks of kMomentBlock elements, whose exponents are of
// the new values. Which way they round is decided by random numbers of (seed, step, stream,
// element).
// An update that the scalars say to skip does none of this: only a parameter beside an fp32 master
// is written, as the master has it.
struct AdamWUpdate {
  TensorView gradient;                // fp32 or bf16
  TensorView master;                  // fp32 or i16, in and out
  TensorView moment1, moment2;        // fp32, bf16 or u8, in and out
  TensorView exponents1, exponents2;  // u8, one for a block of u8 moments, in and out
  TensorView parameter;               // fp32, bf16 or fp16, out; also in with an i16 master
  AdamWOptions options;
  // Weight decay applies to the first so many elements.
  std::int64_t decayed_elements = std::numeric_limits<std::int64_t>::max();
  const StepScalars* scalars = nullptr;
  MomentRounding rounding;  // of moments that are not fp32
  // How far ahead of its work adamw_cpu() fetches memory, in elements; 0: as suits it best.
  std::int64_t fetch_elements = 0;
};

// Sets the views of the moments, their exponents and the master to the parts of a state of
// `elements` elements; a parameter that is its own master must be set before.
void set_state_views(AdamWUpdate& update, const StateFormat& format, std::byte* state,
                     std::int64_t elements);

// Scalar definition.
void adamw_reference(const AdamWUpdate& update);
// Highway + workers, the same bits.
void adamw_cpu(const KernelContext& context, const AdamWUpdate& update);
// Likewise, of the elements [begin, end) by the caller alone; both are multiples of kMomentBlock,
// or the end of all.
void adamw_cpu_range(const AdamWUpdate& update, std::int64_t begin, std::int64_t end);

}  // namespace terrace
