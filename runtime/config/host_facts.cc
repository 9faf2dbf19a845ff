#include "runtime/config/host_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <nlohmann/json.hpp>

#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

std::string host_facts_json() {
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  utsname system = {};
  ::uname(&system);
  const nlohmann::ordered_json facts = {
      {"cpu", topology.cpu_model},
      {"cores", topology.cores},
      {"hardware_threads", topology.hardware_threads},
      {"usable_threads", limits.usable_cpus()},
      {"memory_bytes", limits.total_bytes},
      {"usable_memory_bytes", limits.usable_bytes()},
      {"kernel", fmt::format("{} {}", system.sysname, system.release)}};
  return facts.dump();
}

}  // namespace terrace
