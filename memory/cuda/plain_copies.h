#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/copy_load.h"

// The CUDA runtime's own copies, which copies of the CUDA device are held against. The header is
// there in every build; in one without CUDA the function throws EnvironmentError.
namespace terrace {

enum class LockedMemory : std::uint8_t {
  kAllocated,   // by cudaHostAlloc
  kRegistered,  // HostMemory, as arenas have it, by cudaHostRegister
};

struct PlainCopyOptions {
  int ordinal = 0;                   // of the GPU
  std::size_t size_bytes = 0;        // of each side, even
  std::vector<int> numa_nodes = {};  // of registered memory (HostMemoryOptions)
};

// One cudaMemcpyAsync for each way, on streams of their own. Throws EnvironmentError, OutOfMemory,
// DeviceError.
std::unique_ptr<CopyLoad> make_cuda_plain_copies(LockedMemory memory,
                                                 const PlainCopyOptions& options);

}  // namespace terrace
