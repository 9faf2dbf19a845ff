#pragma once

#include <vector>

#include "bench/update_forms.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "optim/stream_pass.h"

// Measures one update over state in memory, and the least time that the same traffic takes.
namespace terrace {

class UpdateLoad {
 public:
  // `elements` is a multiple of 4Ki. Makes gradients, parameters and a state of the form, with
  // numbers as training has them. Throws OutOfMemory.
  UpdateLoad(const UpdateForm& form, std::int64_t elements, int threads);

  // Each does one pass over the same bytes, and returns GB/s.
  double update();
  double stream(const StreamForm& form);

  // Returns the bytes that a pass moves between memory and processor.
  double traffic_bytes() const;

 private:
  std::vector<StreamedArray> arrays() const;

  const UpdateRule& rule_;
  const StateFormat format_;
  const std::int64_t elements_;
  WorkerArena workers_;
  KernelContext context_;
  HostMemory gradient_;
  HostMemory parameter_;
  HostMemory state_;
  StepScalars scalars_;
};

}  // namespace terrace
