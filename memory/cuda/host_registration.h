#pragma once

#include <cstddef>
#include <span>

namespace terrace {

// Host memory that is page-locked and known to every GPU, in one piece, while this lives: copies
// from and to it are asynchronous and at the speed of the link. Made after the memory was bound to
// its NUMA nodes and touched, for pages cannot move afterwards.
class HostRegistration {
 public:
  // `memory` is whole pages (HostMemory). Throws OutOfMemory where the system does not let so much
  // be locked, EnvironmentError where there is no CUDA.
  explicit HostRegistration(std::span<std::byte> memory);
  ~HostRegistration();
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

 private:
  std::span<std::byte> memory_;
};

}  // namespace terrace
