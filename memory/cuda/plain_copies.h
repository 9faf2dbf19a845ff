#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/copy_load.h"

// The CUDA runtime's own copies, with which copies of the CUDA device are compared. Every build has
// this header; in a build without CUDA the function throws EnvironmentError.
namespace terrace {

enum class LockedMemory : std::uint8_t {
  kAllocated,   // by cudaHostAlloc
  kRegistered,  // HostMemory, as arenas use it, by cudaHostRegister
};

struct PlainCopyOptions {
  int ordinal = 0;                   // of the GPU
  std::size_t size_bytes = 0;        // of each side, even
  std::vector<int> numa_nodes = {};  // of registered memory (HostMemoryOptions)
};

// Makes a load that runs one cudaMemcpyAsync for each way, on separate streams. Throws
// EnvironmentError, OutOfMemory, DeviceError.
std::unique_ptr<CopyLoad> make_cuda_plain_copies(LockedMemory memory,
                                                 const PlainCopyOptions& options);

}  // namespace terrace
