#include "bench/bench_device.h"

#include "memory/cuda/cuda_device.h"
#include "memory/cuda/plain_copies.h"
#include "runtime/train/gpu_choice.h"

namespace terrace {

std::unique_ptr<BenchDevice> make_bench_device(const DeviceChoice& choice) {
  const std::optional<GpuChoice> gpu = choose_gpu(choice, RanksOnHost{}, 1);
  if (!gpu.has_value()) return nullptr;
  auto device = std::make_unique<BenchDevice>();
  device->description = describe_cuda_device(gpu->ordinal);
  device->backend = make_backend(gpu);
  device->capacity_bytes = gpu->capacity_bytes;
  device->link_bytes_per_s = gpu->link_bytes_per_s;
  if (gpu->numa_node >= 0) device->numa_nodes = {gpu->numa_node};
  device->plain_copies = [ordinal = gpu->ordinal,
                          nodes = device->numa_nodes](std::size_t size_bytes) {
    const PlainCopyOptions options = {
        .ordinal = ordinal, .size_bytes = size_bytes, .numa_nodes = nodes};
    std::vector<std::unique_ptr<CopyLoad>> loads;
    for (const LockedMemory memory : {LockedMemory::kAllocated, LockedMemory::kRegistered}) {
      loads.push_back(make_cuda_plain_copies(memory, options));
    }
    return loads;
  };
  return device;
}

}  // namespace terrace
