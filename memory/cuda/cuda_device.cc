#include "memory/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_clock.h"
#include "memory/cuda/cuda_error.h"
#include "memory/cuda/cuda_stream.h"
#include "memory/cuda/gpu_inventory.h"
#include "memory/device_capacity.h"

namespace terrace {
namespace {

constexpr std::size_t kAlignment = 4096;

// The compute capability of the oldest GPUs that the kernels were compiled for, 80 for 8.0
// (cmake/TerraceCuda.cmake).
constexpr int kCapabilityMin = TERRACE_CUDA_CAPABILITY_MIN;

// Returns 80 for a compute capability of 8.0, and 0 where the driver does not say.
int capability_of(int ordinal) noexcept {
  int major = 0;
  int minor = 0;
  const auto get = [ordinal](int& value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(&value, attribute, ordinal) == cudaSuccess;
  };
  if (get(major, cudaDevAttrComputeCapabilityMajor) &&
      get(minor, cudaDevAttrComputeCapabilityMinor)) {
    return major * 10 + minor;
  }
  cudaGetLastError();
  return 0;
}

std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

// Makes later calls of this thread use GPU `ordinal`. Where it cannot be used, throws an error that
// says what is missing.
void open_device(int ordinal) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) throw_cuda_environment_error("cudaGetDeviceCount", counted);
  if (ordinal < 0 || ordinal >= count) {
    throw EnvironmentError(
        fmt::format("there is no GPU {}: the number of visible GPUs is {}", ordinal, count),
        "name one of the visible GPUs as device cuda:N; CUDA_VISIBLE_DEVICES hides the others");
  }
  if (const int capability = capability_of(ordinal);
      0 < capability && capability < kCapabilityMin) {
    throw EnvironmentError(
        fmt::format("GPU {} has compute capability {}: the kernels were compiled for {} and newer",
                    ordinal, capability_text(capability), capability_text(kCapabilityMin)),
        "use another GPU (device cuda:N), or the device cpu; for a GPU of capability 8.0 or newer "
        "the kernels can be built (CMAKE_CUDA_ARCHITECTURES)");
  }
  const cudaError_t error = cudaSetDevice(ordinal);
  if (error != cudaSuccess) throw_cuda_environment_error("cudaSetDevice", error);
}

class CudaDeviceMemory final : public DeviceMemory {
 public:
  CudaDeviceMemory(int ordinal, DeviceCapacity& capacity, std::size_t size_bytes)
      : ordinal_(ordinal), charge_(capacity, size_bytes) {
    use_cuda_device(ordinal_);
    // Large pieces begin on pages of their own; small ones may share one.
    allocate(size_bytes);
    if (reinterpret_cast<std::uintptr_t>(allocation_) % kAlignment != 0) {
      cudaFree(allocation_);
      allocate(size_bytes + kAlignment);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(allocation_);
    const std::size_t skipped = round_up(address, kAlignment) - address;
    bytes_ = {static_cast<std::byte*>(allocation_) + skipped, size_bytes};
  }
  ~CudaDeviceMemory() override { cudaFree(allocation_); }
  CudaDeviceMemory(const CudaDeviceMemory&) = delete;
  CudaDeviceMemory& operator=(const CudaDeviceMemory&) = delete;

  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  void allocate(std::size_t size_bytes) {
    allocation_ = nullptr;
    const cudaError_t error = cudaMalloc(&allocation_, size_bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(
          fmt::format("GPU {} does not have {} free", ordinal_, format_size(size_bytes)),
          "lower the device memory budget, or end other programs that use the GPU");
    }
    check_cuda(error, "cudaMalloc");
  }

  const int ordinal_;
  DeviceCharge charge_;
  void* allocation_ = nullptr;
  std::span<std::byte> bytes_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::size_t capacity_bytes)
      : ordinal_(ordinal),
        name_(fmt::format("cuda:{}", ordinal)),
        capacity_(capacity_bytes),
        clock_(std::make_shared<CudaClock>(ordinal)) {}

  std::string_view name() const override { return name_; }

  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<CudaDeviceMemory>(ordinal_, capacity_, size_bytes);
  }

  std::unique_ptr<Stream> create_stream(std::string_view name) override {
    return std::make_unique<CudaStream>(ordinal_, name, clock_);
  }

  std::unique_ptr<Event> create_event() override {
    return std::make_unique<CudaEvent>(ordinal_, clock_);
  }

  std::size_t free_bytes() const override { return capacity_.free_bytes(); }

 private:
  const int ordinal_;
  const std::string name_;
  DeviceCapacity capacity_;
  const std::shared_ptr<CudaClock> clock_;
};

}  // namespace

bool is_cuda_built() { return true; }

int cuda_device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

bool cuda_device_computes(int ordinal) noexcept {
  return ordinal < cuda_device_count() && capability_of(ordinal) >= kCapabilityMin;
}

std::size_t cuda_capacity_bytes(int ordinal) {
  open_device(ordinal);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return free_bytes > kCudaMarginBytes ? free_bytes - kCudaMarginBytes : 0;
}

std::string cuda_pci_address(int ordinal) {
  open_device(ordinal);
  std::array<char, 32> address = {};
  check_cuda(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), ordinal),
             "cudaDeviceGetPCIBusId");
  std::string text = address.data();
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  open_device(options.ordinal);
  const std::size_t capacity =
      options.capacity_bytes != 0 ? options.capacity_bytes : cuda_capacity_bytes(options.ordinal);
  return std::make_unique<CudaDevice>(options.ordinal, capacity);
}

std::string describe_cuda_device(int ordinal) {
  open_device(ordinal);
  cudaDeviceProp facts = {};
  check_cuda(cudaGetDeviceProperties(&facts, ordinal), "cudaGetDeviceProperties");
  return fmt::format("{} (sm_{}{}, {})", facts.name, facts.major, facts.minor,
                     format_size(facts.totalGlobalMem));
}

}  // namespace terrace
