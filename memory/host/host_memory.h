#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace terrace {

struct HostMemoryOptions {
  bool huge_pages = true;  // madvise(MADV_HUGEPAGE) where the kernel allows it
  bool touch = true;       // fault every page in now, not in the first step
  // hwloc's OS indices. One: all pages on it. Several: page by page on each in turn, which gives
  // threads on any of them the bandwidth of all. None: leave it to the kernel.
  std::vector<int> numa_nodes = {};
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
