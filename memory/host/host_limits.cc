#include "memory/host/host_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/cgroup_tree.h"
#include "memory/host/cpu_mask.h"

namespace terrace {
namespace {

std::optional<std::size_t> parse_number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::string> first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return word;
}

// Returns the number in a file; nothing if the file is missing or contains "max" or "-1".
std::optional<std::size_t> number_in(const std::string& path) {
  const std::optional<std::string> word = first_word(path);
  return word ? parse_number(*word) : std::nullopt;
}

// Returns the number after `key` in a file of "key number" or "key: number kB" lines.
std::optional<std::size_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::size_t value = 0;
    if (word == key && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

void read_cgroup_memory(const std::string& root, HostLimits& limits) {
  std::size_t least_left = std::numeric_limits<std::size_t>::max();
  for (const CgroupPath& path : cgroup_paths(root, "memory")) {
    const bool v2 = path.is_v2;
    for (const std::string& directory : path.directories) {
      const auto limit = number_in(directory + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      // Version 1 writes "no limit" as a number close to 2^63.
      if (!limit || *limit > limits.total_bytes) continue;
      const std::size_t charged =
          number_in(directory + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
      const std::size_t inactive =
          number_after(directory + "/memory.stat", v2 ? "inactive_file" : "total_inactive_file")
              .value_or(0);
      const std::size_t used = charged - std::min(charged, inactive);
      const std::size_t left = *limit - std::min(*limit, used);
      if (limits.cgroup_limit_bytes && left >= least_left) continue;
      least_left = left;
      limits.cgroup_limit_bytes = limit;
      limits.cgroup_used_bytes = used;
    }
  }
}

std::optional<double> cpus_of(const std::string& directory, bool v2) {
  std::optional<std::size_t> quota;
  std::optional<std::size_t> period;
  if (v2) {
    std::ifstream file(directory + "/cpu.max");
    std::string quota_word;
    std::string period_word;
    if (!(file >> quota_word >> period_word)) return std::nullopt;
    quota = parse_number(quota_word);
    period = parse_number(period_word);
  } else {
    quota = number_in(directory + "/cpu.cfs_quota_us");
    period = number_in(directory + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

void read_cgroup_cpus(const std::string& root, HostLimits& limits) {
  for (const CgroupPath& path : cgroup_paths(root, "cpu")) {
    for (const std::string& directory : path.directories) {
      const std::optional<double> cpus = cpus_of(directory, path.is_v2);
      if (cpus) limits.cgroup_cpus = std::min(*cpus, limits.cgroup_cpus.value_or(*cpus));
    }
  }
}

void read_meminfo(const std::string& root, HostLimits& limits) {
  const std::string path = root + "/proc/meminfo";
  const auto total = number_after(path, "MemTotal:");
  auto available = number_after(path, "MemAvailable:");
  if (!available) available = number_after(path, "MemFree:");
  if (!total || !available) {
    throw EnvironmentError(path + " does not say how much memory this machine has",
                           "check that /proc is mounted");
  }
  limits.total_bytes = *total * 1024;
  limits.available_bytes = *available * 1024;
}

std::size_t memlock_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<std::size_t>::max() : limit.rlim_cur;
}

}  // namespace

std::size_t HostLimits::usable_by_host_bytes() const {
  if (!cgroup_limit_bytes) return available_bytes;
  return std::min(available_bytes,
                  *cgroup_limit_bytes - std::min(*cgroup_limit_bytes, cgroup_used_bytes));
}

std::size_t HostLimits::usable_bytes() const {
  return std::min(usable_by_host_bytes(), addresses.left_bytes());
}

std::size_t HostLimits::whole_bytes() const {
  return std::min(total_bytes, cgroup_limit_bytes.value_or(total_bytes));
}

std::string describe_free(const HostLimits& limits) {
  const std::string size = format_size(limits.usable_bytes());
  if (limits.addresses.left_bytes() > limits.usable_by_host_bytes()) return size + " free";
  return fmt::format("{} left of the address space that ulimit -v allows ({})", size,
                     format_size(limits.addresses.limit_bytes.value_or(0)));
}

std::string remedy_for_memory(const HostLimits& limits) {
  if (limits.addresses.left_bytes() <= limits.usable_by_host_bytes()) return "raise ulimit -v";
  return limits.usable_by_host_bytes() < limits.available_bytes ? "raise the cgroup's memory limit"
                                                                : "free memory on this machine";
}

int HostLimits::usable_cpus() const {
  int cpus = affinity_cpus;
  if (cgroup_cpus && *cgroup_cpus < cpus) cpus = static_cast<int>(std::floor(*cgroup_cpus));
  return std::max(1, cpus);
}

HostLimits read_host_limits(const std::string& root) {
  // Paths are made by appending texts such as "/proc", so "/" itself becomes the empty string.
  std::string prefix = root;
  while (!prefix.empty() && prefix.back() == '/') prefix.pop_back();
  HostLimits limits;
  read_meminfo(prefix, limits);
  read_cgroup_memory(prefix, limits);
  read_cgroup_cpus(prefix, limits);
  limits.addresses = read_address_space();
  limits.memlock_limit_bytes = memlock_limit();
  limits.cpus = cpus_of_thread();
  limits.affinity_cpus = static_cast<int>(limits.cpus.size());
  return limits;
}

}  // namespace terrace
