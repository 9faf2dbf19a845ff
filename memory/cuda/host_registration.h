#pragma once

#include <cstddef>
#include <span>

namespace terrace {

// Host memory that is page-locked and known to every GPU, in one piece, while this object lives:
// copies from and to it are asynchronous and run at the speed of the link. Make it after the memory
// was bound to its NUMA nodes and touched, because pages cannot move afterwards.
class HostRegistration {
 public:
  // `memory` is whole pages (HostMemory). Throws OutOfMemory where the system does not allow this
  // much memory to be locked, and EnvironmentError where there is no CUDA.
  explicit HostRegistration(std::span<std::byte> memory);
  ~HostRegistration();
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

 private:
  std::span<std::byte> memory_;
};

}  // namespace terrace
