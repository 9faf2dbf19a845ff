#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace terrace {

struct HostMemoryOptions {
  bool huge_pages = true;  // madvise(MADV_HUGEPAGE) where the kernel allows it
  bool touch = true;       // fault every page in now, not in the first step
  // hwloc's OS indices. With one node, all pages are on that node. With several, pages are placed
  // on each node in turn, which gives threads on any of the nodes the bandwidth of all of them.
  // With none, the kernel decides.
  std::vector<int> numa_nodes = {};
};

// An anonymous mapping, aligned to 2 MiB. It has the requested size, rounded up to whole pages but
// not to a power of two. Unmapped when destroyed.
class HostMemory {
 public:
  // Throws OutOfMemory, with the size and the machine's free memory in the message.
  HostMemory(std::size_t size_bytes, const HostMemoryOptions& options);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::span<std::byte> bytes() const { return bytes_; }
  // Returns bytes() extended to the end of its last page.
  std::span<std::byte> pages() const { return {bytes_.data(), mapped_bytes_}; }
  bool has_huge_pages() const { return has_huge_pages_; }

  // Gives the pages back to the system. Their contents are lost; the addresses stay reserved. A
  // thread that touches the memory before take_pages() gets zeroed pages, one by one.
  void give_pages_back() noexcept;
  // Faults every page in again. If it throws OutOfMemory, the pages stay given back.
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
