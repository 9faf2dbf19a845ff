#include "bench/device_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"

namespace terrace {
namespace {

std::size_t copied_bytes(bool small) { return small ? kMiB : 512 * kMiB; }

std::vector<std::int64_t> product_widths(bool small) {
  return small ? std::vector<std::int64_t>{48, 64} : std::vector<std::int64_t>{4096, 8192, 16384};
}

DeviceWork copy_work(CaseDevice& device, DeviceCaseMemory& memory, bool small) {
  const auto source = memory.zeros(copied_bytes(small));
  const auto target = memory.zeros(copied_bytes(small));
  return {.is = fmt::format("a copy within the device, {}", format_size(source.size())),
          .amount = 2 * static_cast<double>(source.size()),
          .enqueue = [&device, source, target] { device.copy(target, source); }};
}

DeviceWork product_work(CaseDevice& device, DeviceCaseMemory& memory, const MatmulForward& op) {
  const KernelTable& kernels = *device.kernels().table;
  const KernelContext context = memory.context(kernels.matmul_forward_workspace(op, 1));
  const double width = static_cast<double>(op.x.shape[0]);
  return {.is = fmt::format("a product of {0} x {0} x {0}", op.x.shape[0]),
          .amount = 2 * width * width * width,
          .enqueue = [&kernels, context, op] { kernels.matmul_forward(context, op); }};
}

// Returns the fastest product. The operands of the largest one serve all.
DeviceWork best_product(CaseDevice& device, DeviceCaseMemory& memory, DType type, double seconds,
                        bool small) {
  const std::vector<std::int64_t> widths = product_widths(small);
  const std::int64_t widest = widths.back();
  MatmulForward op;
  op.x = memory.tensor(type, widest, widest);
  op.weight = memory.tensor(type, widest, widest);
  op.y = memory.tensor(type, widest, widest);
  DeviceWork best;
  double best_rate = 0;
  for (const std::int64_t width : widths) {
    for (TensorView* const view : {&op.x, &op.weight, &op.y}) view->shape = {width, width, 1, 1};
    DeviceRate rate(device, product_work(device, memory, op), seconds);
    const double measured = rate.measure();
    if (measured <= best_rate) continue;
    best_rate = measured;
    best = rate.work();
  }
  return best;
}

}  // namespace

int calls_for(double seconds, double one_call_s) {
  constexpr double kCallsMax = 500;
  return static_cast<int>(std::clamp(seconds / std::max(one_call_s, 1e-9), 1.0, kCallsMax));
}

DeviceRate::DeviceRate(CaseDevice& device, DeviceWork work, double seconds)
    : device_(device), work_(std::move(work)) {
  device_.seconds(work_.enqueue, 1);  // the first call loads and chooses code
  calls_ = calls_for(seconds, device_.seconds(work_.enqueue, 1));
}

double DeviceRate::measure() {
  return work_.amount * calls_ / device_.seconds(work_.enqueue, calls_);
}

DeviceLimits::DeviceLimits(CaseDevice& device, DType type, double seconds, bool small)
    : memory_(device),
      copy_(device, copy_work(device, memory_, small), seconds),
      product_(device, best_product(device, memory_, type, seconds, small), seconds) {}

std::size_t device_limits_bytes(DType type, bool small) {
  constexpr std::size_t kWorkspaces = 256 * kMiB;  // of the products, and gaps between pieces
  const auto widest = static_cast<std::size_t>(product_widths(small).back());
  return 2 * copied_bytes(small) + 3 * widest * widest * size_of(type) + kWorkspaces;
}

}  // namespace terrace
