#include "bench/device_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr std::size_t kWorkspacesBytes = 256 * kMiB;  // of products, and gaps between pieces

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

// A product, and its operations per second.
struct MeasuredProduct {
  DeviceWork work;
  double rate = 0;
};

// Measures square products of these ascending widths. The operands of the largest one serve all.
std::vector<MeasuredProduct> measure_products(CaseDevice& device, DeviceCaseMemory& memory,
                                              DType type, std::span<const std::int64_t> widths,
                                              double seconds) {
  const std::int64_t widest = widths.back();
  MatmulForward op;
  op.x = memory.tensor(type, widest, widest);
  op.weight = memory.tensor(type, widest, widest);
  op.y = memory.tensor(type, widest, widest);
  std::vector<MeasuredProduct> measured;
  for (const std::int64_t width : widths) {
    for (TensorView* const view : {&op.x, &op.weight, &op.y}) view->shape = {width, width, 1, 1};
    DeviceRate rate(device, product_work(device, memory, op), seconds);
    rate.measure();  // until the clock has settled at what the power limit allows
    measured.push_back({rate.work(), rate.measure()});
  }
  return measured;
}

DeviceWork best_product(CaseDevice& device, DeviceCaseMemory& memory, DType type, double seconds,
                        bool small) {
  const std::vector<MeasuredProduct> measured =
      measure_products(device, memory, type, product_widths(small), seconds);
  return std::ranges::max_element(measured, {}, &MeasuredProduct::rate)->work;
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

std::vector<ProductRate> product_rates(CaseDevice& device, DType type,
                                       std::span<const std::int64_t> widths, double seconds) {
  DeviceCaseMemory memory(device);
  std::vector<ProductRate> rates;
  for (const MeasuredProduct& product : measure_products(device, memory, type, widths, seconds)) {
    rates.push_back({product.work.amount, product.rate});
  }
  return rates;
}

std::size_t product_rates_bytes(std::int64_t widest) {
  const auto width = static_cast<std::size_t>(widest);
  return 3 * width * width * size_of(DType::kF32) + kWorkspacesBytes;
}

std::size_t device_limits_bytes(DType type, bool small) {
  const auto widest = static_cast<std::size_t>(product_widths(small).back());
  return 2 * copied_bytes(small) + 3 * widest * widest * size_of(type) + kWorkspacesBytes;
}

}  // namespace terrace
