#include "bench/kernel_cases.h"
#include "bench/rounds.h"
#include "kernels/cpu/cpu_kernels.h"

namespace terrace {

const KernelLimit& KernelCase::quickest_limit() const {
  std::vector<std::function<void()>> ways;
  for (const KernelLimit& limit : limits) ways.push_back(limit.run);
  return limits.at(quickest_of(ways));
}

const KernelTable& KernelSetting::kernels() const {
  return device != nullptr ? *device->kernels().table : cpu_kernels();
}

int KernelSetting::worker_count() const { return device != nullptr ? 1 : workers->threads(); }

std::shared_ptr<CaseMemory> KernelSetting::make_memory() const {
  if (device != nullptr) return std::make_shared<DeviceCaseMemory>(*device);
  return std::make_shared<HostCaseMemory>(*workers);
}

}  // namespace terrace
