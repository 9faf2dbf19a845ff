#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/model/block_tensors.h"
#include "runtime/model/model_config.h"

// The kernels of a model's step, each with operands of its own and something to hold it against.
namespace terrace {

// One kernel, called alone as a step calls it.
struct KernelCase {
  std::string name;  // snake_case: "matmul_up_forward"
  double flops = 0;  // of a matrix product; else 0
  double bytes = 0;  // that the kernel reads and writes, where it is not a product
  int per_step = 0;  // calls in a step of one micro-batch
  std::function<void()> run = {};
  std::function<void()> limit = {};  // does the same work as fast as the machine can
  std::string limit_is = {};
  std::shared_ptr<void> memory = {};  // what both work on

  bool is_product() const { return flops > 0; }
};

struct KernelSetting {
  ModelConfig model;
  BatchShape batch;
  DType type = DType::kBF16;
  WorkerArena* workers = nullptr;
};

// Makes a case. Its memory is filled when it is made, so one at a time should live.
using KernelCaseMaker = std::function<KernelCase()>;

// Products of a block, attention, and the head with its loss. They borrow the setting.
std::vector<KernelCaseMaker> product_cases(const KernelSetting& setting);
// Everything else that the compute lane does in a step.
std::vector<KernelCaseMaker> element_cases(const KernelSetting& setting);

}  // namespace terrace
