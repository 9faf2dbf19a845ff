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
  int numa_node = -1;              // the nearest one; -1: the system does not say
  double link_bytes_per_s = 0;     // each way; 0: the driver does not say
  std::string pci_address = {};    // "0000:3b:00.0"
};

// Returns which of the `gpus` that its process sees a rank computes on: the one that was named,
// else the one with the rank's number on the host. Throws ConfigError where several ranks of a host
// would share one GPU, and EnvironmentError where there are GPUs but none is left for this rank.
int gpu_ordinal(const DeviceChoice& device, const RanksOnHost& on_host, int gpus);

// Returns whether a run of `ranks` ranks computes on GPUs. It does where they are named. With
// `auto` it does if the run has one rank and the first GPU is_usable(), which is called only then.
// Several ranks have to name GPUs, because all of them must decide alike, whatever each one sees.
bool takes_gpus(const DeviceChoice& device, int ranks, FunctionRef<bool()> is_usable);

// Returns whether the first GPU is there, is new enough for the kernels, and has free memory.
bool first_gpu_is_usable();

// Returns the GPU of a rank; none: the CPU device computes. `auto` means the first GPU or none
// (takes_gpus). With several `ranks` each has a GPU of its own, and the capacity leaves room for
// the memory that their communicators take. Throws EnvironmentError saying what a GPU that was
// asked for lacks, and throws as gpu_ordinal() does.
std::optional<GpuChoice> choose_gpu(const DeviceChoice& device, const RanksOnHost& on_host,
                                    int ranks);

// Sets the environment variables that CUDA and NCCL read, unless the user has set them. For a
// process whose ranks have a GPU each; called before the process has threads or calls CUDA. A
// stream that waits for another rank must not hold up other streams, neither by sharing a queue of
// the GPU with them nor by a kernel that is loaded only then. The order of NCCL's sums must not
// depend on which algorithm its model of the machine considers the fastest for a size: NCCL uses
// rings, in one protocol (docs/cuda.md).
void prepare_for_ranks(const DeviceChoice& device);

// Returns why the GPUs of this machine stay idle with `auto`, which took the CPU device for these
// ranks; empty where there are no GPUs or the CPU device was asked for. Opens no GPU.
std::string why_gpus_are_idle(const DeviceChoice& device, int ranks);

// Returns the backend of the GPU; null for the CPU device.
std::unique_ptr<ComputeBackend> make_backend(const std::optional<GpuChoice>& gpu);

// Returns the NUMA nodes for the host arena of `host_bytes`: the GPU's node, if it is large enough;
// otherwise `nodes`, the nodes of the threads.
std::vector<int> arena_nodes(const std::optional<GpuChoice>& gpu, const Topology& topology,
                             std::size_t host_bytes, const std::vector<int>& nodes);

}  // namespace terrace
