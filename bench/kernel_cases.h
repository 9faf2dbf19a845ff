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

// The kernels of a model's step, each with operands of its own and something to hold it against.
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
  int per_step = 0;  // calls in a step of one micro-batch; 0 of what only sampling calls
  std::function<void()> run = {};
  // The quickest counts. None on a device: all its cases have the same.
  std::vector<KernelLimit> limits = {};
  std::string by = {};                // which library computes it, where that is a choice
  std::shared_ptr<void> memory = {};  // what both work on

  bool is_product() const { return flops > 0; }
  // Calls all ways some times. Of a kernel of the CPU.
  const KernelLimit& quickest_limit() const;
};

struct KernelSetting {
  ModelConfig model;
  BatchShape batch;
  DType type = DType::kBF16;
  WorkerArena* workers = nullptr;  // of kernels of the CPU
  CaseDevice* device = nullptr;    // set: its kernels, which cases enqueue

  const KernelTable& kernels() const;
  int worker_count() const;
  std::shared_ptr<CaseMemory> make_memory() const;
};

// Makes a case. Its memory is filled when it is made, so one at a time should live.
struct KernelCaseMaker {
  std::string name;  // snake_case: "matmul_up_forward"
  std::function<KernelCase()> make;
};

// Products of a block, attention, and the head with its loss. They borrow the setting.
std::vector<KernelCaseMaker> product_cases(const KernelSetting& setting);
// Norms, activations, residual sums and rotations; on the CPU also products of one row and of
// eight, whose work is to read the weight.
std::vector<KernelCaseMaker> element_cases(const KernelSetting& setting);
// What moves the state of a step: embedding, sums, casts and norms of gradients, and updates, of
// `elements` parameters (a multiple of 4Ki). On a device only.
std::vector<KernelCaseMaker> state_cases(const KernelSetting& setting, std::int64_t elements);

}  // namespace terrace
