#include "memory/host/topology.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
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

// A package may have several L3 caches, one per group of cores: their sum.
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

}  // namespace

HwlocTopology load_hwloc_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) refuse(errno);
  HwlocTopology topology(raw);
  if (hwloc_topology_load(raw) != 0) refuse(errno);
  return topology;
}

Topology read_topology() {
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
