#include "tests/gpu/nccl_rank.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "memory/cuda/cuda_device.h"
#include "parallel/host_over_devices.h"
#include "parallel/nccl/nccl_communicator.h"
#include "runtime/train/gpu_choice.h"
#include "tests/gpu/rank_processes.h"

namespace terrace::test {

int own_gpu() {
  static const int gpu = [] {
    prepare_for_ranks({DeviceKind::kCuda, std::nullopt});
    // If there is no GPU at all, CUDA says why.
    return own_place().local_rank % std::max(1, cuda_device_count());
  }();
  return gpu;
}

NcclWorld::NcclWorld(const CommunicatorOptions& options)
    : device_(make_cuda_device({.ordinal = own_gpu(), .capacity_bytes = 256 * kMiB})),
      ranks_(make_host_communicator(make_nccl_world(own_place(), "world", own_gpu(), options),
                                    *device_)) {}

}  // namespace terrace::test
