#include "runtime/config/host_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <exception>
#include <nlohmann/json.hpp>

#include "base/failure_text.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"

namespace terrace {

std::string host_facts_json() {
  utsname system = {};
  ::uname(&system);
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  try {
    const Topology topology = read_topology();
    facts["cpu"] = topology.cpu_model;
    facts["cores"] = topology.cores;
    facts["hardware_threads"] = topology.hardware_threads;
    const HostLimits limits = read_host_limits();
    facts["usable_threads"] = limits.usable_cpus();
    facts["memory_bytes"] = limits.total_bytes;
    facts["usable_memory_bytes"] = limits.usable_bytes();
  } catch (const std::exception& error) {
    facts["remark"] = failure_text(error);
  }
  facts["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  return facts.dump();
}

}  // namespace terrace
