#include "runtime/engine/compute_backend.h"

#include "kernels/cpu/cpu_kernels.h"
#include "memory/cpu/cpu_device.h"

namespace terrace {
namespace {

class CpuComputeDevice final : public ComputeDevice {
 public:
  explicit CpuComputeDevice(std::size_t capacity_bytes)
      : device_(make_cpu_device(capacity_bytes)) {}

  Device& device() override { return *device_; }
  LaneKernels kernels() override { return cpu_lane_kernels(); }
  std::unique_ptr<HostRegistration> lock(std::span<std::byte> /*host_memory*/) override {
    return nullptr;
  }

 private:
  const std::unique_ptr<Device> device_;
};

}  // namespace

std::unique_ptr<ComputeDevice> make_cpu_compute_device(std::size_t capacity_bytes) {
  return std::make_unique<CpuComputeDevice>(capacity_bytes);
}

LaneKernels cpu_lane_kernels() {
  return {&cpu_kernels(), [](const KernelContext& context, const UpdateRule& rule,
                             const ParameterUpdate& update) { rule.cpu(context, update); }};
}

}  // namespace terrace
