#include "runtime/bench/case_memory.h"

#include <algorithm>

#include "base/half.h"

namespace terrace {
namespace {

// 2^-7 to 2^-6, of either sign.
Bf16 small_value(std::int64_t index) {
  const auto bits = static_cast<std::uint32_t>(index) * 2654435761U;
  return Bf16{static_cast<std::uint16_t>(0x3c00U | (bits >> 25) | ((bits >> 8 & 1U) << 15))};
}

}  // namespace

std::span<std::byte> CaseMemory::bytes(std::size_t size) {
  return pieces_.emplace_back(std::max<std::size_t>(size, 4096), HostMemoryOptions{}).bytes();
}

TensorView CaseMemory::tensor(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2) {
  TensorView tensor = view(nullptr, dtype, d0, d1, d2);
  tensor.data = bytes(tensor.size_bytes()).data();
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (dtype == DType::kBF16) {
      tensor.as<Bf16>()[i] = small_value(i);
    } else if (dtype == DType::kF32) {
      tensor.as<float>()[i] = to_float(small_value(i));
    }
  }
  return tensor;
}

TensorView CaseMemory::indices(std::int64_t count, std::int64_t bound) {
  const TensorView tensor = this->tensor(DType::kI32, count);
  for (std::int64_t i = 0; i < count; ++i) {
    tensor.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % bound);
  }
  return tensor;
}

KernelContext CaseMemory::context(std::size_t workspace_bytes) {
  KernelContext context;
  context.workers = &workers_;
  context.workspace = bytes(workspace_bytes);
  return context;
}

}  // namespace terrace
