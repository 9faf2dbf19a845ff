#include "runtime/train/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "memory/cuda/cuda_device.h"

namespace terrace {

std::optional<GpuChoice> choose_gpu(const DeviceChoice& device, int ranks) {
  if (device.kind != DeviceKind::kCuda) return std::nullopt;
  if (ranks > 1) {
    throw ConfigError(fmt::format("--device cuda with {} ranks is not built yet", ranks),
                      "train with one rank, or with --device cpu");
  }
  const int ordinal = device.ordinal;
  return GpuChoice{ordinal, cuda_capacity_bytes(ordinal), cuda_numa_node(ordinal)};
}

bool leaves_gpus_idle(const DeviceChoice& device) {
  return device.kind == DeviceKind::kAuto && cuda_device_count() > 0;
}

std::unique_ptr<ComputeBackend> make_backend(const std::optional<GpuChoice>& gpu) {
  return gpu.has_value() ? make_cuda_backend(gpu->ordinal) : nullptr;
}

std::vector<int> arena_nodes(const std::optional<GpuChoice>& gpu, const Topology& topology,
                             std::size_t host_bytes, const std::vector<int>& nodes) {
  if (!gpu.has_value()) return nodes;
  const bool fits = std::ranges::any_of(topology.numa_nodes, [&](const NumaNode& node) {
    return node.os_index == gpu->numa_node && host_bytes <= node.memory_bytes / 10 * 9;
  });
  return fits ? std::vector<int>{gpu->numa_node} : nodes;
}

}  // namespace terrace
