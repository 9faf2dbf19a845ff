#include "memory/cuda/gpu_inventory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "memory/cuda/nvml_library.h"

namespace terrace {
namespace {

using NvmlDevice = NvmlLibrary::Device;

struct PciInfo {
  std::array<char, 16> short_address;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> address;  // "00000000:3B:00.0"
};
struct MemoryInfo {
  unsigned long long total, free, used;
};

// Returns the address as sysfs writes it: four digits for the domain, small letters.
std::string sysfs_address(std::string address) {
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address.starts_with("0000") && address.find(':') == 8 ? address.substr(4) : address;
}

GpuFacts facts_of(const NvmlLibrary& nvml, NvmlDevice device, const std::string& pci_devices) {
  GpuFacts facts;
  std::array<char, 96> name = {};
  if (nvml.call<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName", device, name.data(),
                                                  static_cast<unsigned>(name.size() - 1))) {
    facts.name = name.data();
  }
  MemoryInfo memory = {};
  if (nvml.call<int(NvmlDevice, MemoryInfo*)>("nvmlDeviceGetMemoryInfo", device, &memory)) {
    facts.memory_bytes = memory.total;
  }
  PciInfo pci = {};
  if (nvml.call<int(NvmlDevice, PciInfo*)>("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    facts.pci_address = sysfs_address(pci.address.data());
    facts.numa_node = numa_node_of_pci(facts.pci_address, pci_devices);
  }
  facts.link_generation = nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", device);
  facts.link_generation_max = nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", device);
  facts.link_lanes = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", device);
  facts.link_lanes_max = nvml.number("nvmlDeviceGetMaxPcieLinkWidth", device);
  return facts;
}

}  // namespace

int numa_node_of_pci(const std::string& address, const std::string& pci_devices) {
  std::ifstream file(pci_devices + "/" + address + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

double link_bytes_per_s(const GpuFacts& gpu) {
  // Bytes per second of one lane, by generation, after its encoding (PCI Express Base
  // Specification).
  constexpr std::array kLane = {0.0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  constexpr double kReached = 0.88;  // by copies of an H200 over 16 lanes of generation 5
  const std::size_t generation = std::min<std::size_t>(gpu.link_generation_max, kLane.size() - 1);
  return kReached * kLane.at(generation) * gpu.link_lanes;
}

GpuInventory read_gpu_inventory(const std::string& library, const std::string& pci_devices) {
  const NvmlLibrary nvml(library);
  GpuInventory inventory;
  if (!nvml.is_there()) {
    inventory.remark = "no CUDA driver";
    return inventory;
  }
  if (!nvml.is_open()) {
    inventory.remark = "there is a CUDA driver, but it does not start";
    return inventory;
  }
  std::array<char, 80> version = {};
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", version.data(),
                                      static_cast<unsigned>(version.size() - 1))) {
    inventory.driver_version = version.data();
  }
  unsigned count = 0;
  nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (!nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", i, &device)) {
      continue;
    }
    inventory.gpus.push_back(facts_of(nvml, device, pci_devices));
  }
  if (inventory.gpus.empty()) inventory.remark = "the driver shows no GPU";
  return inventory;
}

}  // namespace terrace
