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
  // The same up to the end of its last page.
  std::span<std::byte> pages() const { return {bytes_.data(), mapped_bytes_}; }
  bool has_huge_pages() const { return has_huge_pages_; }

  // Gives the pages back to the system: what is in them is lost, and addresses stay. Whoever
  // touches the memory before take_pages() gets pages of zeros, one by one.
  void give_pages_back() noexcept;
  // Faults every page in again. Throws OutOfMemory, and has none of them then.
  void take_pages();

 private:
  void release() noexcept;

  std::span<std::byte> bytes_;
  std::size_t mapped_bytes_ = 0;
  void* mapping_ = nullptr;
  bool has_huge_pages_ = false;
  bool was_locked_ = false;  // when its pages were given back
};

}  // namespace terrace
