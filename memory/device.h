#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

// The interface to an accelerator: memory, in-order queues, events. The real one is CUDA. Tests,
// and machines without an accelerator, use the CPU device, whose streams are worker threads. Both
// pass tests/conformance.
namespace terrace {

// The queue as the vendor's own handle (a cudaStream_t); null on the CPU device.
struct NativeStream {
  void* handle = nullptr;
};

// Work for a stream. The caller owns it, and keeps it alive until it has run.
class StreamTask {
 public:
  virtual ~StreamTask() = default;
  // Called in stream order. On the CPU device it runs on the stream's thread, when everything
  // queued before has completed. On CUDA it runs at once on the calling thread and launches kernels
  // on `stream`. The task keeps its failures itself.
  virtual void run(NativeStream stream) noexcept = 0;
};

// A point in a stream. It may be recorded again after every waiter of the last record has returned.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the calling thread until the point last recorded has been reached. Any thread. An event
  // that was never recorded counts as reached.
  virtual void wait() = 0;
  virtual bool is_reached() const = 0;
  // Returns when the point was reached, on the SystemClock; valid after wait().
  virtual std::int64_t reached_ns() const = 0;
};

// An asynchronous in-order queue of bounded length; a call blocks while the queue is full. Used by
// one issuing thread at a time. Destroying it waits for everything queued.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void run(StreamTask& task) = 0;
  // Copies source to target, which have equal sizes. Each may be in a host arena or in device
  // memory.
  virtual void copy(std::span<std::byte> target, std::span<const std::byte> source) = 0;
  virtual void record(Event& event) = 0;
  // Makes work that is queued later on this stream wait for the event's last record. The caller
  // does not block.
  virtual void wait(Event& event) = 0;
  // Blocks until everything queued has completed. Throws DeviceError if the device failed.
  virtual void synchronize() = 0;
};

// One piece of device memory, freed when destroyed.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Returns addresses of the device. The host may dereference them only on the CPU device.
  virtual std::span<std::byte> bytes() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  // Allocates exactly `size_bytes`, aligned to 4096. Throws OutOfMemory past the device's capacity.
  virtual std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string_view name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual std::size_t free_bytes() const = 0;
};

}  // namespace terrace
