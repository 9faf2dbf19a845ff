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

// Pages that are mapped twice: at addresses that nobody may touch, which is where users of the
// device believe them to be, and where they really are.
class DoubleMapping {
 public:
  explicit DoubleMapping(std::size_t size_bytes);
  ~DoubleMapping();
  DoubleMapping(const DoubleMapping&) = delete;
  DoubleMapping& operator=(const DoubleMapping&) = delete;

  std::span<std::byte> untouchable() const { return untouchable_; }
  std::byte* real() const { return real_; }

 private:
  std::size_t mapped_bytes_;  // more than asked: what is next to it is no one else's
  std::span<std::byte> untouchable_;
  std::byte* real_ = nullptr;
};

// Where pieces of memory really are. Thread-safe.
class FakePieces {
 public:
  void add(const DoubleMapping& mapping);
  void remove(const DoubleMapping& mapping);
  // Null where no piece has it.
  std::byte* real(const std::byte* address) const;

 private:
  struct Piece {
    std::size_t size_bytes = 0;
    std::byte* real = nullptr;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;  // by untouchable address; guarded by mutex_
};

// Memory that every fake GPU of the process has, for what is made before its device is.
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

// What all parts of one fake GPU share. Thread-safe.
class FakeGpuState {
 public:
  FakeGpuState(std::size_t capacity_bytes, int failing_call)
      : capacity(capacity_bytes), calls_left_(failing_call) {}

  void add(const DoubleMapping& mapping) { pieces_.add(mapping); }
  void remove(const DoubleMapping& mapping) { pieces_.remove(mapping); }

  // Where the bytes of device memory are; null stays null. Other memory breaks a check: a kernel of
  // a GPU cannot reach it.
  std::byte* real(const void* address) const;
  // Likewise, but host memory stays what it is.
  std::byte* real_or_host(const void* address) const;

  // A call on a stream or event: throws DeviceError from the failing one on.
  void call(std::string_view name);

  // This thread issues ops of a lane; from now on it must not wait for the device, which would keep
  // the lane from running ahead.
  void issues_lane();
  // This thread waits for the device: breaks a check where that must not be.
  void waits() const;

  DeviceCapacity capacity;

 private:
  FakePieces pieces_;
  mutable std::mutex mutex_;
  std::set<std::thread::id> lane_threads_;  // guarded by mutex_
  std::atomic<int> calls_left_;             // below 0: none fails
  std::atomic<bool> broken_{false};
};

}  // namespace terrace::test
