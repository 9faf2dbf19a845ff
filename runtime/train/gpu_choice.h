#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "memory/host/thread_plan.h"
#include "memory/host/topology.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/compute_backend.h"

namespace terrace {

// The GPU that a run computes on.
struct GpuChoice {
  int ordinal = 0;
  std::size_t capacity_bytes = 0;  // what its arena may take
  int numa_node = -1;              // that it is next to; -1: the system does not say
  double link_bytes_per_s = 0;     // each way; 0: the driver does not say
};

// Which of the `gpus` that its process sees a rank computes on: the one that was named, else the
// one with its number on the host. Throws ConfigError where several ranks of a host would share
// one, EnvironmentError where there are GPUs and none is left for this rank.
int gpu_ordinal(const DeviceChoice& device, const RanksOnHost& on_host, int gpus);

// Whether a run of so many ranks computes on GPUs: where they are named, and by `auto` a run of one
// rank where the first GPU is_usable(), which is asked only then. Several ranks ask for GPUs by
// name: all of them have to decide alike, whatever each sees.
bool takes_gpus(const DeviceChoice& device, int ranks, FunctionRef<bool()> is_usable);

// There, new enough for the kernels, and with memory to give.
bool first_gpu_is_usable();

// None: the CPU device computes. `auto` names the first GPU or none (takes_gpus). Of several
// `ranks` each has a GPU, with room left for what their communicators take of it. Throws
// EnvironmentError naming what a GPU that was asked for lacks, and as gpu_ordinal() does.
std::optional<GpuChoice> choose_gpu(const DeviceChoice& device, const RanksOnHost& on_host,
                                    int ranks);

// For a process with ranks that have a GPU each, before it has threads and calls CUDA: sets what
// CUDA and NCCL read then, unless the user has. A stream that waits for another rank must hold up
// no other stream, neither by sharing a queue of the GPU with it nor by a kernel that is only then
// loaded. And the order of NCCL's sums must not follow from what its model of the machine holds to
// be quickest for a size: rings, in one protocol (docs/cuda.md).
void prepare_for_ranks(const DeviceChoice& device);

// Why the GPUs that there are stay idle with `auto`, which took the CPU device for these ranks;
// empty where there are none, or the CPU device was asked for. Opens no GPU.
std::string why_gpus_are_idle(const DeviceChoice& device, int ranks);

// Null for the CPU device.
std::unique_ptr<ComputeBackend> make_backend(const std::optional<GpuChoice>& gpu);

// NUMA nodes for the host arena of `host_bytes`: the GPU's, where it is so large; otherwise
// `nodes`, those of the threads.
std::vector<int> arena_nodes(const std::optional<GpuChoice>& gpu, const Topology& topology,
                             std::size_t host_bytes, const std::vector<int>& nodes);

}  // namespace terrace
