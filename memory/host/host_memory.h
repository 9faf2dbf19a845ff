#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace terrace {

struct HostMemoryOptions {
  bool huge_pages = true;  // madvise(MADV_HUGEPAGE) where the kernel allows it
  bool touch = true;       // fault every page in now, not in the first step
  // hwloc's OS indices. One node: all pages are on it. Several: pages go to each node in turn,
  // which gives threads on any of them the bandwidth of all. None: the kernel decides.
  std::vector<int> numa_nodes = {};
};

// One anonymous mapping of exactly the requested size, rounded up to a page and never to a power of
// two; aligned to 2 MiB. Unmapped when destroyed.
class HostMemory {
 public:
  // Throws OutOfMemory naming the size and the machine's free memory.
  HostMemory(std::size_t size_bytes, const HostMemoryOptions& options);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::span<std::byte> bytes() const { return bytes_; }
  // Returns the same up to the end of its last page.
  std::span<std::byte> pages() const { return {bytes_.data(), mapped_bytes_}; }
  bool has_huge_pages() const { return has_huge_pages_; }

  // Gives the pages back to the system: their contents are lost, and the addresses stay. A thread
  // that touches the memory before take_pages() gets pages of zeros, one by one.
  void give_pages_back() noexcept;
  // Faults every page in again. If it throws OutOfMemory, the object has no pages.
  void take_pages();

 private:
  void release() noexcept;

  std::span<std::byte> bytes_;
  std::size_t mapped_bytes_ = 0;
  void* mapping_ = nullptr;
  bool has_huge_pages_ = false;
  bool was_locked_ = false;  // whether its pages were locked when they were given back
};

}  // namespace terrace
