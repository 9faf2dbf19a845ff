#include "runtime/cli/machine_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/address_space.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/failure_text.h"
#include "kernels/cuda/cuda_version.h"
#include "kernels/cuda/cudnn_attention.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/gpu_inventory.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "offload/uring/uring_engine.h"
#include "offload/uring/uring_probe.h"
#include "parallel/mpi/peer_memory.h"
#include "parallel/nccl/nccl_communicator.h"
#include "parallel/network_interfaces.h"
#include "runtime/cli/memlock_check.h"

namespace terrace {
namespace {

using enum CheckStatus;

// The threads besides the workers: the lanes, the threads that these wait for, and the I/O engine
// and the checksums of a drive.
constexpr std::size_t kThreadsOfLanes = 9;

CheckStatus ok_if(bool ok) { return ok ? kOk : kWarn; }

// Returns the first line of /proc/cpuinfo that begins with `name`, split at spaces.
std::vector<std::string> cpuinfo_words(std::string_view name) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    std::istringstream stream(line.substr(std::min(line.find(':') + 1, line.size())));
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }
  return {};
}

MachineCheck check_processor_features() {
  constexpr auto kFeatures = std::to_array<std::string_view>(
      {"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"});
  const std::vector<std::string> flags = cpuinfo_words("flags");
  const auto has = [&](std::string_view feature) {
    return std::find(flags.begin(), flags.end(), feature) != flags.end();
  };
  std::vector<std::string_view> found;
  std::copy_if(kFeatures.begin(), kFeatures.end(), std::back_inserter(found), has);
  MachineCheck check{"cpu_features", ok_if(has("avx512_bf16") || has("amx_bf16")),
                     found.empty() ? "none of the features that Terrace uses"
                                   : fmt::format("{}", fmt::join(found, " ")),
                     ""};
  if (check.status != kOk) {
    check.remedy =
        "this processor is slow at bf16 matrix products; one with AVX-512 BF16 or AMX is fast";
  }
  return check;
}

MachineCheck check_cores() {
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  MachineCheck check{"cores", ok_if(limits.usable_cpus() >= topology.hardware_threads), "", ""};
  check.value = fmt::format(
      "{} cores, {} hardware threads; affinity mask {}, cgroup quota {}; "
      "{} can be used",
      topology.cores, topology.hardware_threads, limits.affinity_cpus,
      limits.cgroup_cpus ? fmt::format("{:.1f}", *limits.cgroup_cpus) : "none",
      limits.usable_cpus());
  if (check.status != kOk)
    check.remedy = "widen the affinity mask or the cgroup's cpu.max to use all of them";
  return check;
}

std::string size_or_none(std::optional<std::size_t> bytes) {
  return bytes ? format_size(*bytes) : "none";
}

MachineCheck check_memory() {
  const HostLimits limits = read_host_limits();
  MachineCheck check{"memory", ok_if(limits.usable_bytes() >= limits.total_bytes / 2), "", ""};
  check.value = fmt::format(
      "{} in total, {} available, cgroup limit {}, address-space limit (ulimit -v) {}; {} can be "
      "used",
      format_size(limits.total_bytes), format_size(limits.available_bytes),
      size_or_none(limits.cgroup_limit_bytes), size_or_none(limits.addresses.limit_bytes),
      format_size(limits.usable_bytes()));
  if (check.status != kOk) check.remedy = "end other programs, or " + remedy_for_memory(limits);
  return check;
}

MachineCheck check_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(file, setting);
  const std::size_t open = setting.find('[');
  const std::size_t close = setting.find(']');
  if (open == std::string::npos || close == std::string::npos) {
    return {"huge_pages", kWarn, "unknown: the kernel does not report it",
            "use a kernel with transparent huge pages"};
  }
  const std::string value = setting.substr(open + 1, close - open - 1);
  if (value != "never") return {"huge_pages", kOk, value, ""};
  return {"huge_pages", kWarn, value,
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"};
}

MachineCheck check_memlock_limit() {
  const HostLimits limits = read_host_limits();
  try {
    return check_memlock(probe_uring(), limits);
  } catch (const UringRefused&) {
    return {"memlock", kOk, "not used, because io_uring cannot be used", ""};
  }
}

// Checks that as many threads can run at once as a rank has.
MachineCheck check_threads() {
  const auto wanted = static_cast<std::size_t>(read_host_limits().usable_cpus()) + kThreadsOfLanes;
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(wanted);
  std::string refusal;
  try {
    while (threads.size() < wanted) threads.emplace_back([ended] { ended.wait(); });
  } catch (const std::system_error& error) {
    refusal = error.code().message();
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  if (refusal.empty()) return {"threads", kOk, fmt::format("{} can be started", wanted), ""};
  return {"threads", kFail,
          fmt::format("only {} of the {} threads of a rank can be started: {}", threads.size(),
                      wanted, refusal),
          remedy_for_threads() + ", or the cgroup's pids.max"};
}

MachineCheck check_numa() {
  const Topology topology = read_topology();
  std::vector<std::string> nodes;
  for (const NumaNode& node : topology.numa_nodes) {
    nodes.push_back(fmt::format("node {}: {} CPUs, {}", node.os_index, node.cpus.size(),
                                format_size(node.memory_bytes)));
  }
  return {"numa", kOk, nodes.empty() ? "one node" : fmt::format("{}", fmt::join(nodes, "; ")), ""};
}

MachineCheck check_uring() {
  try {
    probe_uring();
    return {"io_uring", kOk, "can be used", ""};
  } catch (const UringRefused& error) {
    return {"io_uring", kWarn, error.what(),
            std::string("threads with pread and pwrite are used instead; ") +
                (error.where().error_number == ENOMEM
                     ? "the rings of this user count towards ulimit -l; raise that limit"
                     : "containers need a seccomp profile that allows io_uring, and sysctl "
                       "kernel.io_uring_disabled must be 0")};
  }
}

// Checks that a child process can read this process's memory, as ranks on one host read each
// other's.
MachineCheck check_peer_memory() {
  const std::uint64_t value = 0x7e44ace;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    std::uint64_t found = 0;
    const int error_number = read_memory_of(parent, reinterpret_cast<const std::byte*>(&value),
                                            std::as_writable_bytes(std::span(&found, 1)));
    ::_exit(error_number == 0 && found != value ? EFAULT : error_number);
  }
  if (child < 0) {
    throw EnvironmentError("no child process can be started",
                           "raise the limit on processes (ulimit -u, the cgroup's pids.max)");
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return {"peer_memory", kOk, "can be read", ""};
  }
  return {"peer_memory", kWarn,
          fmt::format("cannot be read: {}", WIFEXITED(status) ? std::strerror(WEXITSTATUS(status))
                                                              : "the system ends a process that "
                                                                "tries"),
          "ranks on one host exchange data through shared windows instead; sysctl "
          "kernel.yama.ptrace_scope=0 and a seccomp profile that allows process_vm_readv let them "
          "read each other's memory"};
}

// Lists the networks that could connect ranks on this machine to ranks on others. A job on one
// machine needs none.
MachineCheck check_network() {
  std::vector<std::string> networks;
  for (const NetworkInterface& one : read_network_interfaces()) networks.push_back(describe(one));
  return {"network", kOk,
          networks.empty() ? "none besides the loopback interface"
                           : fmt::format("{}", fmt::join(networks, "; ")),
          ""};
}

std::string describe_gpu(const GpuFacts& gpu) {
  std::string text = fmt::format("{} ({})", gpu.name, format_size(gpu.memory_bytes));
  if (!gpu.pci_address.empty()) text += " at " + gpu.pci_address;
  if (gpu.link_generation_max != 0) {
    text += fmt::format(", PCIe generation {} (now {}) x{}", gpu.link_generation_max,
                        gpu.link_generation, gpu.link_lanes);
  }
  return gpu.numa_node < 0 ? text : text + fmt::format(", NUMA node {}", gpu.numa_node);
}

// Checks the GPUs. No GPU is fine: then the CPU device computes.
MachineCheck check_gpus() {
  const GpuInventory inventory = read_gpu_inventory();
  const std::string built =
      is_cuda_built() ? "" : "; this build has no CUDA: the CPU device is used";
  if (inventory.gpus.empty()) return {"gpu", kOk, inventory.remark + built, ""};
  std::vector<std::string> gpus;
  bool narrow = false;
  for (const GpuFacts& gpu : inventory.gpus) {
    gpus.push_back(describe_gpu(gpu));
    narrow = narrow || gpu.link_lanes < gpu.link_lanes_max;
  }
  return {"gpu", ok_if(!narrow),
          fmt::format("driver {}: {}{}", inventory.driver_version, fmt::join(gpus, "; "), built),
          narrow ? "a GPU uses fewer PCIe lanes than it has: check how it is seated" : ""};
}

std::string built_with() {
  const std::string text = TERRACE_BUILT_WITH;
  if (!is_cuda_built()) return text;
  const std::string cudnn = cudnn_version();
  return fmt::format("{}, {}, {}, {}", text, cublaslt_version(), nccl_version(),
                     cudnn.empty() ? "no cuDNN" : cudnn);
}

MachineCheck check_libraries() { return {"libraries", kOk, built_with(), ""}; }

MachineCheck check_processor() {
  const std::string model = read_topology().cpu_model;
  return {"cpu", kOk, model.empty() ? "unknown" : model, ""};
}

// Returns an error's text without its remedy.
std::string found_by(const std::exception& error, const std::string& remedy) {
  std::string text = failure_text(error);
  const std::string tail = "; " + remedy;
  if (!remedy.empty() && text.ends_with(tail)) text.resize(text.size() - tail.size());
  return text;
}

}  // namespace

MachineCheck stopped_by(const std::exception& error, std::string_view name) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const std::string remedy = ours == nullptr ? "" : ours->remedy();
  return {
      std::string(name), kWarn, found_by(error, remedy),
      remedy.empty() ? "raise the limit or grant the permission that the message names" : remedy};
}

MachineCheck checked(std::string_view name, const std::function<MachineCheck()>& look) {
  try {
    return look();
  } catch (const std::exception& error) {
    return stopped_by(error, name);
  }
}

std::vector<MachineCheck> check_machine() {
  return {checked("cpu", check_processor),
          checked("cpu_features", check_processor_features),
          checked("cores", check_cores),
          checked("threads", check_threads),
          checked("memory", check_memory),
          checked("huge_pages", check_huge_pages),
          checked("memlock", check_memlock_limit),
          checked("numa", check_numa),
          checked("io_uring", check_uring),
          checked("peer_memory", check_peer_memory),
          checked("network", check_network),
          checked("libraries", check_libraries),
          checked("gpu", check_gpus)};
}

}  // namespace terrace
