#pragma once

#include <functional>

#include "memory/device.h"
#include "memory/host/worker_arena.h"
#include "runtime/engine/compute_backend.h"
#include "tests/runtime/engine/fake_gpu_memory.h"

namespace terrace::test {

// What a stream's native handle points to: where kernels are queued.
class FakeGpuQueue {
 public:
  virtual ~FakeGpuQueue() = default;
  virtual void queue(std::function<void()> work) = 0;
  virtual const FakeGpuState& state() const = 0;
  virtual WorkerArena& workers() = 0;
  // What is queued calls these.
  virtual const KernelTable& host_kernels() const = 0;
};

// Kernels of the host, for device memory of a fake GPU: a call takes its arguments along and
// queues. Those of the CPU, or of GPUs.
const KernelTable& fake_gpu_kernels(bool has_shared_kernels);
const KernelTable& fake_gpu_host_kernels(bool has_shared_kernels);
// Attention must have been prepared, by whichever engine, since forget_prepared_attention(): how
// many calls were of shapes that had not been.
void forget_prepared_attention();
int unprepared_attention_calls();
void fake_gpu_update(const KernelContext& context, const UpdateRule& rule,
                     const ParameterUpdate& update);

}  // namespace terrace::test
