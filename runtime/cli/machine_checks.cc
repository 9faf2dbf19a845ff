#include "runtime/cli/machine_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "kernels/cuda/cuda_version.h"
#include "kernels/cuda/cudnn_attention.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/gpu_inventory.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "offload/direct_file.h"
#include "offload/uring/uring_engine.h"
#include "parallel/mpi/peer_memory.h"
#include "parallel/nccl/nccl_communicator.h"

namespace terrace {
namespace {

constexpr std::size_t kMemlockEnough = 64 * kMiB;
constexpr std::size_t kFreeSpaceEnough = 16 * kGiB;

// The first line of /proc/cpuinfo that begins with `name`, split at spaces.
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
  MachineCheck check{
      "cpu_features", has("avx512_bf16") || has("amx_bf16"),
      found.empty() ? "none of those known" : fmt::format("{}", fmt::join(found, " ")), ""};
  if (!check.ok) {
    check.remedy =
        "matrix products in bf16 are slow on this processor; one with AVX-512 BF16 or AMX is fast";
  }
  return check;
}

MachineCheck check_cores(const Topology& topology, const HostLimits& limits) {
  MachineCheck check{"cores", limits.usable_cpus() >= topology.hardware_threads, "", ""};
  check.value = fmt::format(
      "{} cores, {} hardware threads; affinity mask {}, cgroup quota {}; "
      "{} can be used",
      topology.cores, topology.hardware_threads, limits.affinity_cpus,
      limits.cgroup_cpus ? fmt::format("{:.1f}", *limits.cgroup_cpus) : "none",
      limits.usable_cpus());
  if (!check.ok) check.remedy = "widen the affinity mask or the cgroup's cpu.max to use all";
  return check;
}

MachineCheck check_memory(const HostLimits& limits) {
  MachineCheck check{"memory", limits.usable_bytes() >= limits.total_bytes / 2, "", ""};
  check.value =
      fmt::format("{} in all, {} available, cgroup limit {}; {} can be used",
                  format_size(limits.total_bytes), format_size(limits.available_bytes),
                  limits.cgroup_limit_bytes ? format_size(*limits.cgroup_limit_bytes) : "none",
                  format_size(limits.usable_bytes()));
  if (!check.ok) check.remedy = "end other programs, or raise the cgroup's memory limit";
  return check;
}

MachineCheck check_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(file, setting);
  const std::size_t open = setting.find('[');
  const std::size_t close = setting.find(']');
  if (open == std::string::npos || close == std::string::npos) {
    return {"huge_pages", false, "the kernel does not say",
            "use a kernel with transparent huge pages"};
  }
  const std::string value = setting.substr(open + 1, close - open - 1);
  if (value != "never") return {"huge_pages", true, value, ""};
  return {"huge_pages", false, value,
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"};
}

MachineCheck check_memlock(const HostLimits& limits) {
  const std::size_t bytes = limits.memlock_limit_bytes;
  const bool unlimited = bytes >= std::numeric_limits<std::size_t>::max() / 2;
  if (unlimited) return {"memlock", true, "unlimited", ""};
  if (bytes >= kMemlockEnough) return {"memlock", true, format_size(bytes), ""};
  return {"memlock", false, format_size(bytes),
          "ulimit -l unlimited lets io_uring register its buffers, where the kernel counts them"};
}

MachineCheck check_numa(const Topology& topology) {
  std::vector<std::string> nodes;
  for (const NumaNode& node : topology.numa_nodes) {
    nodes.push_back(fmt::format("node {}: {} CPUs, {}", node.os_index, node.cpus.size(),
                                format_size(node.memory_bytes)));
  }
  return {"numa", true, nodes.empty() ? "one node" : fmt::format("{}", fmt::join(nodes, "; ")), ""};
}

// A file of this process in the directory, removed at the end.
class ProbeFile {
 public:
  explicit ProbeFile(const std::string& directory)
      : path_((std::filesystem::path(directory) / fmt::format("terrace-doctor-{}", ::getpid()))
                  .string()),
        file_(path_) {}
  ~ProbeFile() { ::unlink(path_.c_str()); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  const DirectFile& file() const { return file_; }

 private:
  std::string path_;
  DirectFile file_;
};

MachineCheck check_uring(const DirectFile& file) {
  constexpr InFlight kSome = {.pieces_max = 8};
  try {
    const EngineFacts facts = make_uring_engine({&file}, kSome)->facts();
    return {"io_uring", true, facts.remark.empty() ? "can be used" : "can be used; " + facts.remark,
            ""};
  } catch (const UringRefused& error) {
    return {
        "io_uring", false, error.what(),
        "threads with pread and pwrite are used instead; containers need a seccomp profile that "
        "allows io_uring, and sysctl kernel.io_uring_disabled must be 0"};
  }
}

MachineCheck check_direct(const DirectFile& file, const std::string& directory) {
  if (file.direct()) {
    return {"direct_io", true, fmt::format("{}: alignment {} bytes", directory, file.alignment()),
            ""};
  }
  return {"direct_io", false, fmt::format("{}: {}", directory, file.remark()),
          "name a directory on a local drive (ext4, xfs) with --nvme"};
}

MachineCheck check_free_space(const std::string& directory) {
  struct statvfs facts = {};
  if (::statvfs(directory.c_str(), &facts) != 0) {
    throw IoError({.operation = "statvfs", .path = directory, .error_number = errno});
  }
  const std::size_t free_bytes = static_cast<std::size_t>(facts.f_bavail) * facts.f_frsize;
  const bool enough = free_bytes >= kFreeSpaceEnough;
  return {"free_space", enough, fmt::format("{}: {}", directory, format_size(free_bytes)),
          enough ? "" : "free some space, or name a larger drive with --nvme"};
}

// A child looks into this process, as one rank of a host does into another.
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
  if (child < 0) throw EnvironmentError("no child process can be started", "see ulimit -u");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return {"peer_memory", true, "can be read", ""};
  }
  return {"peer_memory", false,
          fmt::format("cannot be read: {}", WIFEXITED(status) ? std::strerror(WEXITSTATUS(status))
                                                              : "the system ends who tries"),
          "ranks of one host exchange through shared windows instead; sysctl "
          "kernel.yama.ptrace_scope=0 and a seccomp profile that allows process_vm_readv let them "
          "read each other"};
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

// Without a GPU all is well: the CPU device computes.
MachineCheck check_gpus() {
  const GpuInventory inventory = read_gpu_inventory();
  const std::string built = is_cuda_built() ? "" : "; CUDA is not built in: the CPU device is used";
  if (inventory.gpus.empty()) return {"gpu", true, inventory.remark + built, ""};
  std::vector<std::string> gpus;
  bool narrow = false;
  for (const GpuFacts& gpu : inventory.gpus) {
    gpus.push_back(describe_gpu(gpu));
    narrow = narrow || gpu.link_lanes < gpu.link_lanes_max;
  }
  return {"gpu", !narrow,
          fmt::format("driver {}: {}{}", inventory.driver_version, fmt::join(gpus, "; "), built),
          narrow ? "a GPU has fewer PCIe lanes than it could: see how it is seated" : ""};
}

std::string built_with() {
  const std::string text = TERRACE_BUILT_WITH;
  if (!is_cuda_built()) return text;
  const std::string cudnn = cudnn_version();
  return fmt::format("{}, {}, {}, {}", text, cublaslt_version(), nccl_version(),
                     cudnn.empty() ? "no cuDNN" : cudnn);
}

}  // namespace

std::vector<MachineCheck> check_machine(const std::string& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw ConfigError(fmt::format("--nvme {}: not a directory", directory),
                      "name a directory that this user may write to");
  }
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  const ProbeFile probe(directory);
  return {{"cpu", true, topology.cpu_model.empty() ? "unknown" : topology.cpu_model, ""},
          check_processor_features(),
          check_cores(topology, limits),
          check_memory(limits),
          check_huge_pages(),
          check_memlock(limits),
          check_numa(topology),
          check_uring(probe.file()),
          check_direct(probe.file(), directory),
          check_free_space(directory),
          check_peer_memory(),
          {"libraries", true, built_with(), ""},
          check_gpus()};
}

}  // namespace terrace
