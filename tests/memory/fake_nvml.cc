#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

// A library with the functions of NVML that gpu_inventory.cc and gpu_energy.cc look up. It has two
// GPUs.
namespace {

struct PciInfo {
  std::array<char, 16> short_address;
  std::array<unsigned, 5> numbers;
  std::array<char, 32> address;
};
struct MemoryInfo {
  unsigned long long total, free, used;
};

std::array<int, 2> gpus = {0, 1};

}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "999.01");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus.at(index);
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "Pretended GPU %d", *static_cast<int*>(device));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, MemoryInfo* memory) {
  *memory = {80ULL << 30, 79ULL << 30, 1ULL << 30};
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* pci) {
  std::snprintf(pci->address.data(), pci->address.size(), "00000000:%02X:00.0",
                0x3A + *static_cast<int*>(device));
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* value) {
  *value = 1;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* value) {
  *value = 5;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* value) {
  *value = 16;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  constexpr int kNotFound = 6;
  const std::string_view at = address;
  if (at != "0000:3a:00.0" && at != "0000:3b:00.0") return kNotFound;
  *device = &gpus.at(at == "0000:3b:00.0" ? 1 : 0);
  return 0;
}
// The first GPU takes 2.5 J between two calls; the other one is too old for a counter.
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  constexpr int kNotSupported = 3;
  if (*static_cast<int*>(device) != 0) return kNotSupported;
  static unsigned long long total = 7'000'000'000'000;
  *millijoules = total += 2500;
  return 0;
}
// The function for the maximum width is left out: some drivers do not have every function.
}
