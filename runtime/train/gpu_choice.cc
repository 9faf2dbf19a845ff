#include "runtime/train/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/gpu_inventory.h"
#include "parallel/nccl/nccl_communicator.h"

namespace terrace {

int gpu_ordinal(const DeviceChoice& device, const RanksOnHost& on_host, int gpus) {
  if (device.ordinal && on_host.count > 1) {
    throw ConfigError(fmt::format("--device cuda:{} with {} ranks on a host: each rank needs its "
                                  "own GPU",
                                  *device.ordinal, on_host.count),
                      "give --device cuda: then each rank takes the GPU with its own number on the "
                      "host");
  }
  const int ordinal = device.ordinal.value_or(on_host.index);
  // If there is no GPU at all, CUDA says why.
  if (on_host.count > 1 && gpus > 0 && ordinal >= gpus) {
    throw EnvironmentError(
        fmt::format("there is no GPU {} for rank {} of the {} on this host: the number of visible "
                    "GPUs is {}",
                    ordinal, on_host.index, on_host.count, gpus),
        "start at most as many ranks as there are GPUs, and make all GPUs visible to every rank "
        "(CUDA_VISIBLE_DEVICES)");
  }
  return ordinal;
}

bool takes_gpus(const DeviceChoice& device, int ranks, FunctionRef<bool()> is_usable) {
  if (device.kind == DeviceKind::kAuto) return ranks == 1 && is_usable();
  return device.kind == DeviceKind::kCuda;
}

bool first_gpu_is_usable() {
  try {
    return cuda_device_computes(0) && cuda_capacity_bytes(0) > 0;
  } catch (const EnvironmentError&) {
    return false;  // another process may hold it exclusively
  } catch (const DeviceError&) {
    return false;
  }
}

std::optional<GpuChoice> choose_gpu(const DeviceChoice& device, const RanksOnHost& on_host,
                                    int ranks) {
  if (!takes_gpus(device, ranks, [] { return first_gpu_is_usable(); })) return std::nullopt;
  const int ordinal = gpu_ordinal(device, on_host, cuda_device_count());
  const std::size_t kept = ranks > 1 ? kNcclMarginBytes : 0;
  const std::size_t capacity = cuda_capacity_bytes(ordinal);
  GpuChoice choice{.ordinal = ordinal, .capacity_bytes = capacity - std::min(capacity, kept)};
  choice.pci_address = cuda_pci_address(ordinal);
  choice.numa_node = numa_node_of_pci(choice.pci_address);
  for (const GpuFacts& gpu : read_gpu_inventory().gpus) {
    if (gpu.pci_address == choice.pci_address) choice.link_bytes_per_s = link_bytes_per_s(gpu);
  }
  return choice;
}

void prepare_for_ranks(const DeviceChoice& device) {
  if (device.kind != DeviceKind::kCuda) return;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ::setenv("NCCL_ALGO", "Ring", 0);
  ::setenv("NCCL_PROTO", "Simple", 0);
}

std::string why_gpus_are_idle(const DeviceChoice& device, int ranks) {
  if (device.kind != DeviceKind::kAuto || cuda_device_count() == 0) return {};
  // Several ranks do not ask how much memory is free, because each would open GPU 0 for that.
  if (ranks > 1 && cuda_device_computes(0)) {
    return "there are GPUs; several ranks use them only with --device cuda";
  }
  return "GPU 0 is too old for the kernels, has no memory free or cannot be opened";
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
