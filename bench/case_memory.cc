#include "bench/case_memory.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/half.h"
#include "bench/case_device.h"

namespace terrace {
namespace {

constexpr std::size_t kSizeMin = 4096;
constexpr std::size_t kStagingMax = 16 * kMiB;

// Returns a number from 2^-7 to 2^-6, of either sign.
Bf16 small_value(std::size_t index) {
  const auto bits = static_cast<std::uint32_t>(index) * 2654435761U;
  return Bf16{static_cast<std::uint16_t>(0x3c00U | (bits >> 25) | ((bits >> 8 & 1U) << 15))};
}

template <typename T>
std::span<T> elements_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

TensorView CaseMemory::tensor(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2) {
  TensorView tensor = view(nullptr, dtype, d0, d1, d2);
  tensor.data = bytes(tensor.size_bytes()).data();
  write({tensor.data, tensor.size_bytes()}, [dtype](std::span<std::byte> out) {
    const auto values = elements_of<Bf16>(out);
    const auto wide = elements_of<float>(out);
    if (dtype == DType::kBF16) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = small_value(i);
    } else if (dtype == DType::kF32) {
      for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = to_float(small_value(i));
    } else {
      std::ranges::fill(out, std::byte{0});
    }
  });
  return tensor;
}

TensorView CaseMemory::indices(std::int64_t count, std::int64_t bound) {
  TensorView tensor = view(nullptr, DType::kI32, count);
  tensor.data = bytes(tensor.size_bytes()).data();
  write({tensor.data, tensor.size_bytes()}, [bound](std::span<std::byte> out) {
    const auto indices = elements_of<std::int32_t>(out);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      indices[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % bound);
    }
  });
  return tensor;
}

std::span<std::byte> CaseMemory::zeros(std::size_t size) {
  const std::span<std::byte> target = bytes(size).first(size);
  write(target, [](std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  return target;
}

std::span<std::byte> CaseMemory::holding(std::span<const std::byte> content) {
  const std::span<std::byte> target = bytes(content.size()).first(content.size());
  write(target, [content](std::span<std::byte> out) {
    std::ranges::copy(content.first(out.size()), out.begin());
  });
  return target;
}

std::span<std::byte> HostCaseMemory::bytes(std::size_t size) {
  return pieces_.emplace_back(std::max(size, kSizeMin), HostMemoryOptions{}).bytes();
}

KernelContext HostCaseMemory::context(std::size_t workspace_bytes) {
  KernelContext context;
  context.workers = &workers_;
  context.workspace = bytes(workspace_bytes);
  return context;
}

void HostCaseMemory::write(std::span<std::byte> target, const Fill& fill) { fill(target); }

std::span<std::byte> DeviceCaseMemory::bytes(std::size_t size) {
  pieces_.push_back(device_.device().allocate(std::max(size, kSizeMin)));
  return pieces_.back()->bytes();
}

KernelContext DeviceCaseMemory::context(std::size_t workspace_bytes) {
  return device_.context(bytes(workspace_bytes));
}

void DeviceCaseMemory::write(std::span<std::byte> target, const Fill& fill) {
  std::vector<std::byte> staging(std::min(target.size(), kStagingMax));
  fill(staging);
  for (std::size_t at = 0; at < target.size(); at += staging.size()) {
    const std::size_t size = std::min(staging.size(), target.size() - at);
    device_.upload(target.subspan(at, size), std::span(staging).first(size));
  }
}

}  // namespace terrace
