#include "memory/host/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "memory/host/hwloc_topology.h"

// Added in Linux 5.14: older headers do not define it, and older kernels return EINVAL.
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

constexpr std::size_t kAlignment = 2 * kMiB;

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

[[noreturn]] void refuse(std::size_t size_bytes, const std::string& why) {
  const HostLimits limits = read_host_limits();
  throw OutOfMemory(fmt::format("host memory: {} requested, {}{}", format_size(size_bytes),
                                describe_free(limits), why),
                    "lower the host budget, or " + remedy_for_memory(limits));
}

std::string reason(int error_number) { return fmt::format(": {}", std::strerror(error_number)); }

// madvise() accepts the request even if the administrator has turned huge pages off.
bool kernel_allows_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  return std::getline(file, modes) && modes.find("[never]") == std::string::npos;
}

bool advise_huge_pages(std::span<std::byte> bytes) {
  return bytes.size() >= kAlignment && kernel_allows_huge_pages() &&
         ::madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE) == 0;
}

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};

constexpr const char* kLeaveUnset = "leave numa_nodes empty";

void bind_to_nodes(std::span<std::byte> bytes, const std::vector<int>& nodes) {
  const HwlocTopology topology = load_hwloc_topology();
  const std::unique_ptr<hwloc_bitmap_s, FreeBitmap> set(hwloc_bitmap_alloc());
  for (const int node : nodes) {
    const hwloc_obj_t object =
        hwloc_get_numanode_obj_by_os_index(topology.get(), static_cast<unsigned>(node));
    if (object == nullptr) {
      throw ConfigError(
          fmt::format("this machine has no NUMA node {}", node),
          std::string("'lstopo' lists the nodes that it has; name one of them or ") + kLeaveUnset);
    }
    hwloc_bitmap_or(set.get(), set.get(), object->nodeset);
  }
  const hwloc_membind_policy_t policy =
      nodes.size() == 1 ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_INTERLEAVE;
  if (hwloc_set_area_membind(topology.get(), bytes.data(), bytes.size(), set.get(), policy,
                             HWLOC_MEMBIND_BYNODESET) != 0) {
    throw EnvironmentError(fmt::format("memory cannot be bound to NUMA nodes {}{}",
                                       fmt::join(nodes, ", "), reason(errno)),
                           kLeaveUnset);
  }
}

void fault_in(std::span<std::byte> bytes) {
  if (::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) == 0) return;
  if (errno == ENOMEM || errno == EFAULT) refuse(bytes.size(), reason(errno));
  const std::size_t step = page_bytes();
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    *const_cast<volatile std::byte*>(&bytes[at]) = std::byte{0};
  }
}

}  // namespace

HostMemory::HostMemory(std::size_t size_bytes, const HostMemoryOptions& options) {
  if (size_bytes == 0) return;
  // The kernel may grant memory that it does not have, and later kill the process that writes to
  // it.
  if (size_bytes > std::numeric_limits<std::size_t>::max() / 2 ||
      (options.touch && size_bytes > read_host_limits().usable_bytes())) {
    refuse(size_bytes, "");
  }
  mapped_bytes_ = round_up(size_bytes, page_bytes());
  const std::size_t reserved = mapped_bytes_ + kAlignment;
  void* start =
      ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) refuse(size_bytes, reason(errno));
  auto* first = static_cast<std::byte*>(start);
  const std::size_t skipped = round_up(reinterpret_cast<std::uintptr_t>(first), kAlignment) -
                              reinterpret_cast<std::uintptr_t>(first);
  if (skipped != 0) ::munmap(first, skipped);
  if (skipped != kAlignment) ::munmap(first + skipped + mapped_bytes_, kAlignment - skipped);
  mapping_ = first + skipped;
  bytes_ = {first + skipped, size_bytes};
  try {
    if (!options.numa_nodes.empty()) bind_to_nodes(bytes_, options.numa_nodes);
    if (options.huge_pages) has_huge_pages_ = advise_huge_pages(bytes_);
    if (options.touch) fault_in({bytes_.data(), mapped_bytes_});
  } catch (...) {
    release();
    throw;
  }
}

HostMemory::~HostMemory() { release(); }

HostMemory::HostMemory(HostMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      has_huge_pages_(std::exchange(other.has_huge_pages_, false)),
      was_locked_(std::exchange(other.was_locked_, false)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  bytes_ = std::exchange(other.bytes_, {});
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  mapping_ = std::exchange(other.mapping_, nullptr);
  has_huge_pages_ = std::exchange(other.has_huge_pages_, false);
  was_locked_ = std::exchange(other.was_locked_, false);
  return *this;
}

void HostMemory::give_pages_back() noexcept {
  if (mapping_ == nullptr || ::madvise(mapping_, mapped_bytes_, MADV_DONTNEED) == 0) return;
  // For a private mapping, the system refuses this only if mlock() or mlockall() has locked the
  // pages. Such pages are unlocked here, and locked again in take_pages(). If unlocking is refused
  // too, the memory is not given back, although its contents are no longer used.
  was_locked_ = ::munlock(mapping_, mapped_bytes_) == 0;
  if (was_locked_) ::madvise(mapping_, mapped_bytes_, MADV_DONTNEED);
}

void HostMemory::take_pages() {
  const std::size_t free = read_host_limits().usable_bytes();
  try {
    if (mapped_bytes_ > free) refuse(mapped_bytes_, "");
    fault_in(pages());
  } catch (const OutOfMemory&) {
    give_pages_back();
    throw OutOfMemory(fmt::format("{} of host memory are needed again, but only {} are free",
                                  format_size(mapped_bytes_), format_size(free)),
                      "free memory on this machine, and resume again");
  }
  // If this exceeds the user's limit on locked memory, the pages stay unlocked.
  if (std::exchange(was_locked_, false)) ::mlock(mapping_, mapped_bytes_);
}

void HostMemory::release() noexcept {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
  mapping_ = nullptr;
  mapped_bytes_ = 0;
  bytes_ = {};
}

}  // namespace terrace
