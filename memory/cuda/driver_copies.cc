#include "memory/cuda/driver_copies.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {
namespace {

// Values from cuda.h: CUresult, CUpointer_attribute, CUmemorytype, and flags.
constexpr int kDriverSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kOperatingSystem = 304;
constexpr int kMemoryType = 2;
constexpr int kDeviceOrdinal = 9;
constexpr unsigned kHostMemory = 1;
constexpr unsigned kDeviceMemory = 2;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kBlockingSync = 1;  // of events: a waiting thread sleeps, and burns no core
constexpr unsigned kDisableTiming = 2;
constexpr unsigned kPortable = 1;

constexpr const char* kDriverRemedy =
    "install NVIDIA's driver, make the GPU visible to the process, or keep the memory on the host";
constexpr const char* kCallRemedy =
    "errors of earlier work on the GPU also appear here: check what the process last ran on it "
    "(CUDA_LAUNCH_BLOCKING=1 shows where)";

DriverAddress address_of(const std::byte* data) {
  return static_cast<DriverAddress>(reinterpret_cast<std::uintptr_t>(data));
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return;
  throw EnvironmentError(fmt::format("the CUDA driver has no {}", name),
                         "install a driver for CUDA 11 or newer");
}

DriverFunctions functions_in(void* library) {
  DriverFunctions found;
  find(library, "cuInit", found.init);
  find(library, "cuGetErrorString", found.get_error_string);
  find(library, "cuDeviceGet", found.device_get);
  find(library, "cuDevicePrimaryCtxRetain", found.context_retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", found.context_release);
  find(library, "cuCtxPushCurrent_v2", found.context_push);
  find(library, "cuCtxPopCurrent_v2", found.context_pop);
  find(library, "cuStreamCreate", found.stream_create);
  find(library, "cuStreamDestroy_v2", found.stream_destroy);
  find(library, "cuStreamSynchronize", found.stream_synchronize);
  find(library, "cuStreamWaitEvent", found.stream_wait_event);
  find(library, "cuEventCreate", found.event_create);
  find(library, "cuEventDestroy_v2", found.event_destroy);
  find(library, "cuEventRecord", found.event_record);
  find(library, "cuEventSynchronize", found.event_synchronize);
  find(library, "cuMemcpyDtoHAsync_v2", found.copy_to_host);
  find(library, "cuMemcpyHtoDAsync_v2", found.copy_to_device);
  find(library, "cuMemHostRegister_v2", found.host_register);
  find(library, "cuMemHostUnregister", found.host_unregister);
  find(library, "cuPointerGetAttribute", found.pointer_attribute);
  return found;
}

}  // namespace

CudaDriver::CudaDriver(const std::string& library) {
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    throw EnvironmentError(fmt::format("there is no CUDA driver ({})", library), kDriverRemedy);
  }
  functions_ = functions_in(loaded);
  const int result = functions_.init(0);
  if (result == kDriverSuccess) return;
  throw EnvironmentError(fmt::format("the CUDA driver cannot be initialised: {}", text_of(result)),
                         kDriverRemedy);
}

std::string CudaDriver::text_of(int result) const {
  const char* text = nullptr;
  const bool is_known =
      functions_.get_error_string(result, &text) == kDriverSuccess && text != nullptr;
  return fmt::format("{} (error {})", is_known ? text : "unknown", result);
}

void CudaDriver::check(int result, std::string_view call, std::string_view memory) const {
  if (result == kDriverSuccess) return;
  throw DeviceError(fmt::format("{}: {} failed: {}", memory, call, text_of(result)), kCallRemedy);
}

// Makes the GPU's context current on the calling thread while this object lives.
class DriverCopies::Current {
 public:
  Current(const DriverCopies& copies, std::string_view name) : functions_(copies.functions_) {
    copies.driver_->check(functions_.context_push(copies.context_), "cuCtxPushCurrent", name);
  }
  ~Current() {
    void* popped = nullptr;
    functions_.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const DriverFunctions& functions_;
};

DriverCopies::DriverCopies(std::shared_ptr<const CudaDriver> driver, int device)
    : driver_(std::move(driver)), functions_(driver_->functions()), ordinal_(device) {
  if (functions_.device_get(&device_, device) != kDriverSuccess) {
    throw EnvironmentError(fmt::format("the CUDA driver does not show GPU {}", device),
                           "give the number that cudaGetDevice() returns for it in this process");
  }
  const std::string name = fmt::format("GPU {}", device);
  driver_->check(functions_.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain", name);
  try {
    const Current current(*this, name);
    driver_->check(functions_.stream_create(&stream_, kNonBlocking), "cuStreamCreate", name);
    driver_->check(functions_.event_create(&order_, kDisableTiming), "cuEventCreate", name);
    for (void*& end : ends_) {
      driver_->check(functions_.event_create(&end, kBlockingSync | kDisableTiming), "cuEventCreate",
                     name);
    }
  } catch (...) {
    release();
    throw;
  }
}

DriverCopies::~DriverCopies() { release(); }

void DriverCopies::release() noexcept {
  if (functions_.context_push(context_) == kDriverSuccess) {
    for (void* const end : ends_) {
      if (end != nullptr) functions_.event_destroy(end);
    }
    if (order_ != nullptr) functions_.event_destroy(order_);
    if (stream_ != nullptr) functions_.stream_destroy(stream_);
    void* popped = nullptr;
    functions_.context_pop(&popped);
  }
  functions_.context_release(device_);
}

// Asks for the first and the last byte. The bytes between are one allocation, or several that have
// been mapped side by side.
std::string DriverCopies::refusal_of(std::span<const std::byte> bytes,
                                     std::string_view name) const {
  const Current current(*this, name);
  for (const std::byte* const byte : {bytes.data(), bytes.data() + bytes.size() - 1}) {
    unsigned type = 0;
    const int known = functions_.pointer_attribute(&type, kMemoryType, address_of(byte));
    if (known == kInvalidValue) {
      return byte == bytes.data() ? "is not memory that CUDA knows"
                                  : "ends beyond the memory that CUDA knows";
    }
    driver_->check(known, "cuPointerGetAttribute", name);
    if (type == kHostMemory) return "is memory of the host";
    if (type != kDeviceMemory) return fmt::format("is memory of CUDA's type {}", type);
    int owner = -1;
    driver_->check(functions_.pointer_attribute(&owner, kDeviceOrdinal, address_of(byte)),
                   "cuPointerGetAttribute", name);
    if (owner != ordinal_) return fmt::format("is memory of GPU {}", owner);
  }
  return "";
}

void DriverCopies::order_after(void* stream, std::string_view name) {
  const Current current(*this, name);
  driver_->check(functions_.event_record(order_, stream), "cuEventRecord", name);
  driver_->check(functions_.stream_wait_event(stream_, order_, 0), "cuStreamWaitEvent", name);
}

void DriverCopies::start_to_host(std::byte* host, const DeviceBytes& from, std::size_t slot,
                                 void* stream) {
  const Current current(*this, from.name);
  driver_->check(functions_.copy_to_host(host, address_of(from.data), from.size_bytes, stream),
                 "cuMemcpyDtoHAsync", from.name);
  mark_end(slot, stream, from.name);
}

void DriverCopies::start_to_host(std::byte* host, const DeviceBytes& from, std::size_t slot) {
  start_to_host(host, from, slot, stream_);
}

void DriverCopies::start_to_device(const DeviceBytes& to, const std::byte* host, std::size_t slot) {
  const Current current(*this, to.name);
  driver_->check(functions_.copy_to_device(address_of(to.data), host, to.size_bytes, stream_),
                 "cuMemcpyHtoDAsync", to.name);
  mark_end(slot, stream_, to.name);
}

// A copy whose end could not be recorded is over when this throws.
void DriverCopies::mark_end(std::size_t slot, void* stream, std::string_view name) {
  const int result = functions_.event_record(ends_.at(slot), stream);
  if (result != kDriverSuccess) functions_.stream_synchronize(stream);
  driver_->check(result, "cuEventRecord", name);
}

void DriverCopies::wait(std::size_t slot, std::string_view name) {
  const Current current(*this, name);
  driver_->check(functions_.event_synchronize(ends_.at(slot)), "cuEventSynchronize", name);
}

void DriverCopies::lock(std::span<std::byte> memory) {
  const Current current(*this, "page-locked memory");
  const int result = functions_.host_register(memory.data(), memory.size(), kPortable);
  if (result == kOutOfMemory || result == kOperatingSystem) {
    throw OutOfMemory(fmt::format("the system cannot lock {} of host memory for the GPU",
                                  format_size(memory.size())),
                      "raise the limit on locked memory (ulimit -l unlimited)");
  }
  driver_->check(result, "cuMemHostRegister", "page-locked memory");
}

void DriverCopies::unlock(std::span<std::byte> memory) noexcept {
  if (functions_.context_push(context_) != kDriverSuccess) return;
  functions_.host_unregister(memory.data());
  void* popped = nullptr;
  functions_.context_pop(&popped);
}

}  // namespace terrace
