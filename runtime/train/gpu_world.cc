#include "runtime/train/gpu_world.h"

#include "base/bytes.h"
#include "memory/cuda/cuda_device.h"
#include "parallel/host_over_devices.h"
#include "parallel/nccl/nccl_communicator.h"
#include "runtime/train/gpu_choice.h"

namespace terrace {
namespace {

// The part of kNcclMarginBytes for the pieces of all communicators for host memory.
constexpr std::size_t kPiecesBytes = 256 * kMiB;

}  // namespace

GpuWorld::GpuWorld(const LaunchEnvironment& launch, const DeviceChoice& device,
                   const CommunicatorOptions& options) {
  const int ordinal =
      gpu_ordinal(device, {launch.local_size, launch.local_rank}, cuda_device_count());
  device_ = make_cuda_device({.ordinal = ordinal, .capacity_bytes = kPiecesBytes});
  ranks_ = make_host_communicator(make_nccl_world(launch, "world", ordinal, options), *device_);
}

}  // namespace terrace
