#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/case_device.h"
#include "bench/case_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/model/batch_shape.h"
#include "runtime/model/model_config.h"

// The kernels of a model's step, each with operands of its own and limits to compare it with.
namespace terrace {

// A way to do the work of a kernel as fast as the machine can.
struct KernelLimit {
  std::string is;  // in words
  std::function<void()> run = {};
};

// One kernel, called alone as a step calls it.
struct KernelCase {
  double flops = 0;  // of a matrix product; else 0
  double bytes = 0;  // that the kernel reads and writes, where it is not a product
  int per_step = 0;  // calls in a step of one micro-batch; 0 if only sampling calls it
  std::function<void()> run = {};
  // The quickest limit counts. Empty on a device, where all cases have the same limits.
  std::vector<KernelLimit> limits = {};
  std::string by = {};                // which library computes it, where that is a choice
  std::shared_ptr<void> memory = {};  // that both work on

  bool is_product() const { return flops > 0; }
  // Calls all ways some times, and returns the quickest; only for a kernel of the CPU.
  const KernelLimit& quickest_limit() const;
};

struct KernelSetting {
  ModelConfig model;
  BatchShape batch;
  DType type = DType::kBF16;
  WorkerArena* workers = nullptr;  // of kernels of the CPU
  CaseDevice* device = nullptr;    // if set: cases enqueue its kernels

  const KernelTable& kernels() const;
  int worker_count() const;
  std::shared_ptr<CaseMemory> make_memory() const;
};

// Makes a case. The case's memory is filled when it is made, so only one case should live at a
// time.
struct KernelCaseMaker {
  std::string name;  // snake_case: "matmul_up_forward"
  std::function<KernelCase()> make;
};

// Products of a block, attention, and the head with its loss. They borrow the setting.
std::vector<KernelCaseMaker> product_cases(const KernelSetting& setting);
// Norms, activations, residual sums and rotations; on the CPU also products of one row and of
// eight, whose work is to read the weight.
std::vector<KernelCaseMaker> element_cases(const KernelSetting& setting);
// The kernels that move the state of a step: embedding, sums, casts, codes and norms of gradients,
// and updates. They have `elements` parameters (a multiple of 4Ki). Only on a device.
std::vector<KernelCaseMaker> state_cases(const KernelSetting& setting, std::int64_t elements);

}  // namespace terrace
