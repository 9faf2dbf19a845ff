#include "memory/host/topology.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/error.h"
#include "memory/host/cpu_mask.h"
#include "memory/host/hwloc_topology.h"

namespace terrace {
namespace {

[[noreturn]] void refuse(int error_number) {
  throw EnvironmentError(
      std::string("the machine's topology cannot be read: ") + std::strerror(error_number),
      "check that /sys and /proc are mounted");
}

std::string cpu_model_of(hwloc_topology_t topology) {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* model =
      package != nullptr ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  if (model == nullptr) {
    model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "CPUModel");
  }
  return model != nullptr ? model : "unknown";
}

std::size_t l2_of_one_core(hwloc_topology_t topology) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, HWLOC_OBJ_L2CACHE, 0);
  return cache != nullptr ? cache->attr->cache.size : 0;
}

// Returns the total size of the L3 caches of the first package. It may have several, one for each
// group of cores.
std::size_t l3_of_first_package(hwloc_topology_t topology) {
  hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  if (package == nullptr) package = hwloc_get_root_obj(topology);
  std::size_t size_bytes = 0;
  hwloc_obj_t cache = nullptr;
  while ((cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L3CACHE, cache)) != nullptr) {
    if (hwloc_bitmap_intersects(cache->cpuset, package->cpuset) != 0) {
      size_bytes += cache->attr->cache.size;
    }
  }
  return size_bytes;
}

NumaNode numa_node_of(hwloc_obj_t object) {
  NumaNode node;
  node.os_index = static_cast<int>(object->os_index);
  node.memory_bytes = object->attr->numanode.local_memory;
  for (int cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0;
       cpu = hwloc_bitmap_next(object->cpuset, cpu)) {
    node.cpus.push_back(cpu);
  }
  return node;
}

// Returns a number that the C library reports about the system, or 0 if it does not know.
std::size_t system_number(int name) {
  const long value = ::sysconf(name);
  return value > 0 ? static_cast<std::size_t>(value) : 0;
}

// Reads the processors' model name and the number of cores from /proc/cpuinfo.
void read_cpuinfo(Topology& topology) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;
  std::string package;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) topology.cpu_model = value;
    if (line.starts_with("physical id")) package = value;
    if (line.starts_with("core id")) cores.emplace(package, value);
  }
  topology.cores = static_cast<int>(cores.size());
}

Topology topology_without_hwloc() {
  Topology topology;
  topology.cpu_model = "unknown";
  read_cpuinfo(topology);
  NumaNode node;
  node.cpus = cpus_of_thread();
  node.memory_bytes = system_number(_SC_PHYS_PAGES) * system_number(_SC_PAGESIZE);
  topology.hardware_threads = static_cast<int>(node.cpus.size());
  if (topology.cores <= 0 || topology.cores > topology.hardware_threads) {
    topology.cores = topology.hardware_threads;
  }
  topology.l2_bytes = system_number(_SC_LEVEL2_CACHE_SIZE);
  topology.l3_bytes = system_number(_SC_LEVEL3_CACHE_SIZE);
  topology.numa_nodes.push_back(std::move(node));
  return topology;
}

}  // namespace

HwlocTopology load_hwloc_topology() {
  if (!affinity_of_thread()) {
    throw EnvironmentError(
        "the system refuses sched_getaffinity, which Terrace needs to tell NUMA nodes apart",
        "allow it in the container's seccomp profile");
  }
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) refuse(errno);
  HwlocTopology topology(raw);
  if (hwloc_topology_load(raw) != 0) refuse(errno);
  return topology;
}

Topology read_topology() {
  if (!affinity_of_thread()) return topology_without_hwloc();
  const HwlocTopology handle = load_hwloc_topology();
  hwloc_topology_t topology = handle.get();
  Topology result;
  result.cpu_model = cpu_model_of(topology);
  result.hardware_threads = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU));
  result.cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
  if (result.cores <= 0) result.cores = result.hardware_threads;
  result.l2_bytes = l2_of_one_core(topology);
  result.l3_bytes = l3_of_first_package(topology);
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    result.numa_nodes.push_back(numa_node_of(node));
  }
  return result;
}

}  // namespace terrace
