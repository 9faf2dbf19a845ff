#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "memory/copy_load.h"
#include "memory/host/host_memory.h"
#include "runtime/engine/compute_backend.h"

namespace terrace {

// The bytes that a step copies at a time: a chunk of gradients.
inline constexpr std::size_t kGradientChunkBytes = 64 * kMiB;

// Copies as the upload and the download lane of a step make them: streams of the device, host
// memory as an arena's, pieces as large as chunks of gradients, and an event after each piece.
class LaneCopies final : public CopyLoad {
 public:
  // `size_bytes` is even; `numa_nodes` as in HostMemoryOptions. Borrows the device. Throws
  // OutOfMemory, DeviceError.
  LaneCopies(ComputeDevice& device, std::size_t size_bytes, const std::vector<int>& numa_nodes);

  std::string_view name() const override { return "streams of the device, the host arena"; }
  CopySeconds run(CopyWays ways) override;

 private:
  // A stream, and the events of the pieces that it copies.
  struct Way {
    std::unique_ptr<Stream> stream;
    std::vector<std::unique_ptr<Event>> pieces;
  };

  void copy(Way& way, std::span<std::byte> target, std::span<const std::byte> source);
  double seconds_since_start(const Way& way, std::size_t bytes) const;

  HostMemory host_memory_;
  std::unique_ptr<HostRegistration> locked_;
  std::unique_ptr<DeviceMemory> device_memory_;
  std::span<std::byte> host_, device_;
  std::unique_ptr<Event> start_;
  Way upload_, download_;
};

}  // namespace terrace
