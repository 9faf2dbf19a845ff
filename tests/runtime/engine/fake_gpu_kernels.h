#pragma once

#include <functional>

#include "memory/device.h"
#include "memory/host/worker_arena.h"
#include "runtime/engine/compute_backend.h"
#include "tests/runtime/engine/fake_gpu_memory.h"

namespace terrace::test {

// A queue of kernels. A stream's native handle points to one.
class FakeGpuQueue {
 public:
  virtual ~FakeGpuQueue() = default;
  virtual void queue(std::function<void()> work) = 0;
  virtual const FakeGpuState& state() const = 0;
  virtual WorkerArena& workers() = 0;
  // Returns the kernels that queued work calls.
  virtual const KernelTable& host_kernels() const = 0;
};

// Returns kernels of the host for the device memory of a fake GPU: a call copies its arguments and
// is queued. They are the kernels of the CPU, or those that GPUs share.
const KernelTable& fake_gpu_kernels(bool has_shared_kernels);
const KernelTable& fake_gpu_host_kernels(bool has_shared_kernels);
// Every shape of attention must have been prepared by some engine since
// forget_prepared_attention(). Returns the number of attention calls whose shape had not been.
void forget_prepared_attention();
int unprepared_attention_calls();
void fake_gpu_update(const KernelContext& context, const UpdateRule& rule,
                     const ParameterUpdate& update);

}  // namespace terrace::test
