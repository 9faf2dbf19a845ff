#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <thread>

#include "memory/device.h"
#include "memory/device_capacity.h"

namespace terrace::test {

// Pages that are mapped twice: at addresses that nobody may touch, which users of the device take
// for its memory, and at the addresses where they really are.
class DoubleMapping {
 public:
  explicit DoubleMapping(std::size_t size_bytes);
  ~DoubleMapping();
  DoubleMapping(const DoubleMapping&) = delete;
  DoubleMapping& operator=(const DoubleMapping&) = delete;

  std::span<std::byte> untouchable() const { return untouchable_; }
  std::byte* real() const { return real_; }

 private:
  std::size_t mapped_bytes_;  // more than asked: its neighbours belong to nobody else
  std::span<std::byte> untouchable_;
  std::byte* real_ = nullptr;
};

// The addresses where pieces of memory really are. Thread-safe.
class FakePieces {
 public:
  void add(const DoubleMapping& mapping);
  void remove(const DoubleMapping& mapping);
  // Returns null if no piece contains the address.
  std::byte* real(const std::byte* address) const;

 private:
  struct Piece {
    std::size_t size_bytes = 0;
    std::byte* real = nullptr;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;  // by untouchable address; guarded by mutex_
};

// Memory that all fake GPUs of the process share, for data that is made before its device is.
class CommonFakeMemory final : public DeviceMemory {
 public:
  explicit CommonFakeMemory(std::size_t size_bytes);
  ~CommonFakeMemory() override;
  CommonFakeMemory(const CommonFakeMemory&) = delete;
  CommonFakeMemory& operator=(const CommonFakeMemory&) = delete;

  std::span<std::byte> bytes() const override { return mapping_.untouchable(); }

 private:
  const DoubleMapping mapping_;
};

// The state that all parts of one fake GPU share. Thread-safe.
class FakeGpuState {
 public:
  FakeGpuState(std::size_t capacity_bytes, int failing_call)
      : capacity(capacity_bytes), calls_left_(failing_call) {}

  void add(const DoubleMapping& mapping) { pieces_.add(mapping); }
  void remove(const DoubleMapping& mapping) { pieces_.remove(mapping); }

  // Returns where the bytes of device memory are; null stays null. Other memory breaks a check, as
  // a kernel of a GPU could not reach it.
  std::byte* real(const void* address) const;
  // Does the same, but returns the address of host memory unchanged.
  std::byte* real_or_host(const void* address) const;

  // Counts a call on a stream or event. Throws DeviceError for the failing call and all later ones.
  void call(std::string_view name);

  // Notes that this thread issues ops of a lane. From now on it must not wait for the device, which
  // would keep the lane from running ahead.
  void issues_lane();
  // Notes that this thread waits for the device. Breaks a check if it must not.
  void waits() const;

  DeviceCapacity capacity;

 private:
  FakePieces pieces_;
  mutable std::mutex mutex_;
  std::set<std::thread::id> lane_threads_;  // guarded by mutex_
  std::atomic<int> calls_left_;             // 0: none is left to fail
  std::atomic<bool> broken_{false};
};

}  // namespace terrace::test
