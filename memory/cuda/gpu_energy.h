#pragma once

#include <memory>
#include <optional>
#include <string>

namespace terrace {

class NvmlLibrary;

// Measures the energy that a GPU takes, memory included, by the counter of NVML. In every build.
// Used by one thread.
class GpuEnergy {
 public:
  // `pci_address` is the GPU's ("0000:3b:00.0"), `library` is NVML's. Never throws: lack() says
  // what is missing.
  explicit GpuEnergy(const std::string& pci_address,
                     const std::string& library = "libnvidia-ml.so.1");
  ~GpuEnergy();
  GpuEnergy(const GpuEnergy&) = delete;
  GpuEnergy& operator=(const GpuEnergy&) = delete;

  // Returns why nothing is measured; empty where energy is measured.
  const std::string& lack() const { return lack_; }

  // Returns the joules since the call before this one. None at the first call, where nothing is
  // measured, and where the counter could not be read this time or the last.
  std::optional<double> take_joules();

 private:
  std::optional<unsigned long long> read_mj() const;

  std::unique_ptr<NvmlLibrary> nvml_;
  void* device_ = nullptr;
  std::string lack_;
  std::optional<unsigned long long> last_mj_;
};

}  // namespace terrace
