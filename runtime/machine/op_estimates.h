#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/engine/model_runtime.h"
#include "runtime/machine/machine.h"
#include "runtime/step/machine_profile.h"

namespace terrace {

// The rates of a device's kernels.
struct KernelRates {
  double flops_per_s = 1;                        // of large products
  std::vector<ProductSpeed> product_curve = {};  // as Machine has it
  double attention_share = 1;                    // of that rate, that attention reaches
  double memory_bytes_per_s = 1;        // of kernels that only move through the device's memory
  double launch_s = 0;                  // added to each kernel
  std::uint64_t logits_bytes_most = 1;  // of a chunk of the head's logits (head_chunk_rows())
  // For each of the head's logits, in a pass that reads it in fp32 and writes its gradient in the
  // compute type.
  double logit_pass_bytes = 0;
};

// Returns the rates of a rank's kernels on a machine, given the rank's profile and the type that it
// computes in.
KernelRates kernel_rates(const Machine& machine, const MachineProfile& profile, DType type);

// The kernels of the ops in which units compute, by class, and the work of the op that they are of
// (work_of()).
struct OpKernels {
  std::vector<KernelCost> kernels;
  double work = 1;
};
using KernelsOfOps = std::map<OpClass, OpKernels>;

// Adds the kernels of a program's ops.
void add_kernels(const ModelRuntimeOptions& options, const Program& program, KernelsOfOps& ops);

// Estimates how long the ops take, and sets `seconds_per_work` of the profile. A kernel takes as
// long as its products, or as its tensors take to pass through memory once, whichever is longer.
// Other ops (copies, sums, updates) keep the profile's rates.
void estimate_ops(const KernelsOfOps& ops, const KernelRates& rates, MachineProfile& profile);

}  // namespace terrace
