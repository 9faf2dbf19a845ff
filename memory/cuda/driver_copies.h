#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "memory/cuda/driver_functions.h"

// Copies between the host and GPU memory that belongs to another part of the process, such as
// PyTorch. They use the CUDA driver, which is loaded at run time, in the context that the whole
// process shares (the primary one). In every build.
namespace terrace {

// The driver, once it runs. Any thread.
class CudaDriver {
 public:
  // Throws EnvironmentError where there is no driver, or it does not start or lacks a function.
  // `library` is found as dlopen() finds it, and stays loaded.
  explicit CudaDriver(const std::string& library = "libcuda.so.1");

  const DriverFunctions& functions() const { return functions_; }
  // Throws DeviceError where the result of a call is not success, naming the call and the memory.
  void check(int result, std::string_view call, std::string_view memory) const;

 private:
  std::string text_of(int result) const;

  DriverFunctions functions_;
};

// Dense bytes of a GPU, and their name for errors.
struct DeviceBytes {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  std::string_view name;
};

// Copies from and to one GPU, started on a stream of this object or on a caller's stream. Any
// thread may call it; several may at a time if they name different slots, but order_after() is
// called by one at a time. An error of the driver is thrown as DeviceError.
class DriverCopies {
 public:
  static constexpr std::size_t kSlots = 4;

  // Throws EnvironmentError where there is no such GPU, and DeviceError.
  DriverCopies(std::shared_ptr<const CudaDriver> driver, int device);
  // Waits for nothing: every copy that was started has been waited for.
  ~DriverCopies();
  DriverCopies(const DriverCopies&) = delete;
  DriverCopies& operator=(const DriverCopies&) = delete;

  // Returns why these bytes are not memory of the GPU, such as "is memory of the host"; an empty
  // string if they are.
  std::string refusal_of(std::span<const std::byte> bytes, std::string_view name) const;
  // Makes copies on this object's stream that start from now on wait for the work that a caller's
  // stream has been given so far.
  void order_after(void* stream, std::string_view name);
  // Starts a copy into page-locked memory on a caller's stream, and remembers its end in a slot.
  void start_to_host(std::byte* host, const DeviceBytes& from, std::size_t slot, void* stream);
  // Does the same on this object's stream.
  void start_to_host(std::byte* host, const DeviceBytes& from, std::size_t slot);
  void start_to_device(const DeviceBytes& to, const std::byte* host, std::size_t slot);
  // Waits for the copy that was started last with this slot.
  void wait(std::size_t slot, std::string_view name);

  // Page-locks whole pages of the host for all GPUs. Throws OutOfMemory where the system does not
  // allow this much memory to be locked.
  void lock(std::span<std::byte> memory);
  void unlock(std::span<std::byte> memory) noexcept;

 private:
  class Current;

  void mark_end(std::size_t slot, void* stream, std::string_view name);
  void release() noexcept;

  const std::shared_ptr<const CudaDriver> driver_;
  const DriverFunctions& functions_;
  const int ordinal_;  // of the GPU
  int device_ = 0;     // its handle
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* order_ = nullptr;                // event
  std::array<void*, kSlots> ends_ = {};  // events
};

}  // namespace terrace
