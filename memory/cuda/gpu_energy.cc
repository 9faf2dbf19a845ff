#include "memory/cuda/gpu_energy.h"

#include <fmt/format.h>

#include <utility>

#include "memory/cuda/nvml_library.h"

namespace terrace {

GpuEnergy::GpuEnergy(const std::string& pci_address, const std::string& library)
    : nvml_(std::make_unique<NvmlLibrary>(library)) {
  if (!nvml_->is_open()) {
    lack_ = fmt::format(
        "{} cannot be used; it belongs to the NVIDIA driver, and a container needs "
        "the driver's capability \"utility\" for it",
        library);
  } else if (!nvml_->call<int(const char*, NvmlLibrary::Device*)>(
                 "nvmlDeviceGetHandleByPciBusId_v2", pci_address.c_str(), &device_)) {
    lack_ = fmt::format("NVML does not find the GPU {}", pci_address);
  } else if (!read_mj()) {
    lack_ =
        fmt::format("the GPU {} has no counter of energy: GPUs have one since Volta", pci_address);
  }
}

GpuEnergy::~GpuEnergy() = default;

std::optional<unsigned long long> GpuEnergy::read_mj() const {
  unsigned long long total_mj = 0;  // since the driver was loaded
  const bool is_read = nvml_->call<int(NvmlLibrary::Device, unsigned long long*)>(
      "nvmlDeviceGetTotalEnergyConsumption", device_, &total_mj);
  if (!is_read) return std::nullopt;
  return total_mj;
}

std::optional<double> GpuEnergy::take_joules() {
  if (!lack_.empty()) return std::nullopt;
  const auto before = std::exchange(last_mj_, read_mj());
  if (!before || !last_mj_ || *last_mj_ < *before) return std::nullopt;
  return static_cast<double>(*last_mj_ - *before) * 1e-3;
}

}  // namespace terrace
