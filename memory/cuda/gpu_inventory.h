#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Lists the GPUs that the NVIDIA driver knows, by NVML, which is loaded at run time. In every
// build.
namespace terrace {

struct GpuFacts {
  std::string name;
  std::string pci_address;  // "0000:3b:00.0"
  std::size_t memory_bytes = 0;
  // The PCIe link; 0 where the driver does not say. A link may sleep at a lower generation.
  unsigned link_generation = 0, link_generation_max = 0;
  unsigned link_lanes = 0, link_lanes_max = 0;
  int numa_node = -1;  // of the processor it is attached to; -1: the system does not say
};

struct GpuInventory {
  std::string driver_version;  // empty without a driver
  std::vector<GpuFacts> gpus;
  std::string remark;  // why there are no GPUs, e.g. "no CUDA driver"
};

// Never throws. `library` is NVML's; `pci_devices` is the directory where sysfs lists devices by
// address.
GpuInventory read_gpu_inventory(const std::string& library = "libnvidia-ml.so.1",
                                const std::string& pci_devices = "/sys/bus/pci/devices");

// Returns the bytes per second that copies reach over the GPU's PCIe link in one direction, from
// its generation and its lanes; 0 where the driver does not report them.
double link_bytes_per_s(const GpuFacts& gpu);

// Returns the NUMA node of the PCI device at `address` ("0000:3b:00.0"); -1: the system does not
// say.
int numa_node_of_pci(const std::string& address,
                     const std::string& pci_devices = "/sys/bus/pci/devices");

}  // namespace terrace
