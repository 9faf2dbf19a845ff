#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "memory/host/topology.h"
#include "runtime/config/train_options.h"
#include "runtime/train/compute_backend.h"

namespace terrace {

// The GPU that a run computes on.
struct GpuChoice {
  int ordinal = 0;
  std::size_t capacity_bytes = 0;  // what its arena may take
  int numa_node = -1;              // that it is next to; -1: the system does not say
};

// None: the CPU device computes. `auto` does so too until this code has run on a GPU. Throws
// EnvironmentError naming what a GPU that was asked for lacks, ConfigError where several ranks
// would share out a model among GPUs, which is not built yet.
std::optional<GpuChoice> choose_gpu(const DeviceChoice& device, int ranks);

// Whether there is a GPU which `auto` does not take.
bool leaves_gpus_idle(const DeviceChoice& device);

// Null for the CPU device.
std::unique_ptr<ComputeBackend> make_backend(const std::optional<GpuChoice>& gpu);

// NUMA nodes for the host arena of `host_bytes`: the GPU's, where it is so large; otherwise
// `nodes`, those of the threads.
std::vector<int> arena_nodes(const std::optional<GpuChoice>& gpu, const Topology& topology,
                             std::size_t host_bytes, const std::vector<int>& nodes);

}  // namespace terrace
