#include "memory/host/cpu_mask.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>

namespace terrace {
namespace {

struct FreeMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};

// A mask with room for more processors than cpu_set_t has.
struct CpuMask {
  explicit CpuMask(int cpu_count)
      : cpus(cpu_count), size(CPU_ALLOC_SIZE(cpu_count)), mask(CPU_ALLOC(cpu_count)) {
    if (mask != nullptr) CPU_ZERO_S(size, mask.get());
  }
  int cpus;
  std::size_t size;
  std::unique_ptr<cpu_set_t, FreeMask> mask;
};

}  // namespace

// Tries larger and larger masks: the kernel returns EINVAL if the mask is smaller than its own.
std::optional<std::vector<int>> affinity_of_thread() {
  for (int cpus = 1024; cpus <= 1024 * 1024; cpus *= 2) {
    const CpuMask mask(cpus);
    if (mask.mask == nullptr) return std::nullopt;
    if (::sched_getaffinity(0, mask.size, mask.mask.get()) != 0) {
      if (errno == EINVAL) continue;
      return std::nullopt;
    }
    std::vector<int> result;
    for (int cpu = 0; cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, mask.size, mask.mask.get())) result.push_back(cpu);
    }
    if (!result.empty()) return result;
  }
  return std::nullopt;
}

std::vector<int> cpus_of_thread() {
  if (const auto told = affinity_of_thread()) return *told;
  std::vector<int> all(static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool confine_thread(std::span<const int> cpus) {
  if (cpus.empty()) return false;
  int most = 0;
  for (const int cpu : cpus) most = cpu > most ? cpu : most;
  const CpuMask mask(most + 1);
  if (mask.mask == nullptr) return false;
  for (const int cpu : cpus) CPU_SET_S(cpu, mask.size, mask.mask.get());
  return ::sched_setaffinity(0, mask.size, mask.mask.get()) == 0;
}

}  // namespace terrace
