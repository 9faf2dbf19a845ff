#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/host/worker_arena.h"
#include "memory/tensor.h"
#include "runtime/session/gpu_memory.h"

namespace terrace {

// Sets target = source (assign) or target = target + source, element by element in fp32. The source
// is fp32, bf16 or fp16, dense, and has as many elements as the target. Without workers the calling
// thread does it alone.
void add_gradient(WorkerArena* workers, std::span<float> target, const TensorView& source,
                  bool assigns);

// A gradient in memory of a GPU; see ParameterSession::add_gradient().
struct GpuGradient {
  TensorView elements;
  GpuPlace place;
  std::string_view name;  // of its tensor
};

// Does the same with a gradient in memory of a GPU, by the session's staging for gradients: a part
// comes over the link while the part before it is added. If it throws, some parts have been added.
void add_gpu_gradient(GpuMemory& gpus, WorkerArena* workers, std::span<float> target,
                      const GpuGradient& source, bool assigns);

// Sums of squares of gradients, tensor by tensor in the order of the calls. Each is summed in
// blocks of 4096 elements (kNormBlock), so the result has the same bits with every number of
// threads.
class SquareSums {
 public:
  explicit SquareSums(WorkerArena& workers) : workers_(workers) {}

  void add(std::span<float> gradient);
  // Adds the partials that partials_of() has returned for a gradient: the sum is the same, bit for
  // bit.
  void add_partials(std::span<const double> partials);
  // Returns the sums of squares of a gradient's blocks.
  std::vector<double> partials_of(std::span<float> gradient) const;
  // Returns the 2-norm of all gradients that were added.
  double norm() const;
  double sum() const { return sum_; }

 private:
  void fill(std::span<float> gradient, std::span<double> partials) const;

  WorkerArena& workers_;
  std::vector<double> partials_;  // of one tensor
  double sum_ = 0;
};

}  // namespace terrace
