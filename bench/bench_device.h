#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/copy_load.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/compute_backend.h"

namespace terrace {

// A device with memory of its own, which a benchmark measures in place of the CPU's.
struct BenchDevice {
  std::string description;  // for people: "NVIDIA H100 (sm_90, 80.0 GiB)"
  std::shared_ptr<const ComputeBackend> backend;
  std::size_t capacity_bytes = 0;    // what arenas may take of it
  double link_bytes_per_s = 0;       // as in GpuChoice
  std::vector<int> numa_nodes = {};  // of host memory next to it; none: anywhere
  // Makes copies of `size_bytes` by the vendor's calls alone, one for each kind of host memory that
  // is worth a try. The best of them is the limit of our copies. Throws OutOfMemory, DeviceError.
  std::function<std::vector<std::unique_ptr<CopyLoad>>(std::size_t size_bytes)> plain_copies;
};

// Makes the device that --device names; null for the CPU. Throws as choose_gpu() does.
std::unique_ptr<BenchDevice> make_bench_device(const DeviceChoice& choice);

}  // namespace terrace
