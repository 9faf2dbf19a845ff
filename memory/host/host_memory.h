#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace terrace {

struct HostMemoryOptions {
  bool huge_pages = true;  // madvise(MADV_HUGEPAGE) where the kernel allows it
  bool touch = true;       // fault every page in now, not in the first step
  std::optional<int> numa_node =
      std::nullopt;  // bind to this node (hwloc OS index); unset: leave it to the kernel
};

// One anonymous mapping of exactly the size asked, rounded up to a page and never to a power of
// two; aligned to 2 MiB. Unmapped when destroyed.
class HostMemory {
 public:
  // Throws OutOfMemory naming the size and what the machine has free.
  HostMemory(std::size_t size_bytes, const HostMemoryOptions& options);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::span<std::byte> bytes() const { return bytes_; }
  bool has_huge_pages() const { return has_huge_pages_; }

 private:
  void release() noexcept;

  std::span<std::byte> bytes_;
  std::size_t mapped_bytes_ = 0;
  void* mapping_ = nullptr;
  bool has_huge_pages_ = false;
};

}  // namespace terrace
