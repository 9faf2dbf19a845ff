#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/host/worker_arena.h"
#include "memory/tensor.h"

namespace terrace {

// target = source (assign), or target + source, element by element in fp32. The source is fp32,
// bf16 or fp16, dense, and has as many elements.
void add_gradient(WorkerArena& workers, std::span<float> target, const TensorView& source,
                  bool assigns);

// Sums of squares of gradients, tensor by tensor in the order of the calls, each in blocks of 4096
// elements as kNormBlock has them: the same bits with every number of threads.
class SquareSums {
 public:
  explicit SquareSums(WorkerArena& workers) : workers_(workers) {}

  void add(std::span<float> gradient);
  // The 2-norm of all that was added.
  double norm() const;

 private:
  WorkerArena& workers_;
  std::vector<double> partials_;  // of one tensor
  double sum_ = 0;
};

}  // namespace terrace
