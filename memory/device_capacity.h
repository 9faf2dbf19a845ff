#pragma once

#include <atomic>
#include <cstddef>

namespace terrace {

// The part of a device's capacity that has been given out. Thread-safe.
class DeviceCapacity {
 public:
  explicit DeviceCapacity(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Throws OutOfMemory naming the bytes asked for and the bytes free.
  void take(std::size_t size_bytes);
  void give_back(std::size_t size_bytes) { used_bytes_.fetch_sub(size_bytes); }
  std::size_t free_bytes() const { return capacity_bytes_ - used_bytes_.load(); }

 private:
  const std::size_t capacity_bytes_;
  std::atomic<std::size_t> used_bytes_{0};
};

// A part of the capacity, given back when destroyed.
class DeviceCharge {
 public:
  DeviceCharge(DeviceCapacity& capacity, std::size_t size_bytes)
      : capacity_(capacity), size_bytes_(size_bytes) {
    capacity_.take(size_bytes_);
  }
  DeviceCharge(const DeviceCharge&) = delete;
  DeviceCharge& operator=(const DeviceCharge&) = delete;
  ~DeviceCharge() { capacity_.give_back(size_bytes_); }

 private:
  DeviceCapacity& capacity_;
  const std::size_t size_bytes_;
};

}  // namespace terrace
