#include "memory/cpu/cpu_device.h"

#include <fmt/format.h>
#include <pthread.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "base/address_space.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "memory/device_capacity.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"

namespace terrace {
namespace {

constexpr std::size_t kQueueCommands = 256;

// Each record has a number, one more than the last; reached_ is the largest number whose record has
// run. Everything is read and notified under the mutex, so that a thread that saw the event reached
// may destroy it.
class CpuEvent final : public Event {
 public:
  CpuEvent() = default;
  CpuEvent(const CpuEvent&) = delete;
  CpuEvent& operator=(const CpuEvent&) = delete;

  // Waits, because a queued command that names the event still has to run.
  ~CpuEvent() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queued_commands_ == 0; });
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    wait_for(lock, recorded_);
  }

  bool is_reached() const override {
    const std::scoped_lock lock(mutex_);
    return reached_ >= recorded_;
  }

  std::int64_t reached_ns() const override {
    const std::scoped_lock lock(mutex_);
    return reached_ns_;
  }

  // Called by the issuing thread. Returns the number that the stream hands to run_record().
  std::uint64_t queue_record() {
    const std::scoped_lock lock(mutex_);
    ++queued_commands_;
    return ++recorded_;
  }

  // Called by the issuing thread. Returns the number that the stream hands to run_wait(); 0 if it
  // need not wait.
  std::uint64_t queue_wait() {
    const std::scoped_lock lock(mutex_);
    if (reached_ >= recorded_) return 0;
    ++queued_commands_;
    return recorded_;
  }

  void run_record(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    if (number > reached_) {
      reached_ = number;
      reached_ns_ = SystemClock().now_ns();
    }
    --queued_commands_;
    changed_.notify_all();
  }

  void run_wait(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    wait_for(lock, number);
    --queued_commands_;
    changed_.notify_all();
  }

 private:
  void wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t number) {
    changed_.wait(lock, [this, number] { return reached_ >= number; });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  std::int64_t reached_ns_ = 0;
  int queued_commands_ = 0;
};

struct Command {
  enum class Kind : std::uint8_t { kRun, kCopy, kRecord, kWait };
  Kind kind = Kind::kRun;
  StreamTask* task = nullptr;
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t size_bytes = 0;
  CpuEvent* event = nullptr;
  std::uint64_t event_number = 0;
};

void execute(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kRun:
      command.task->run(NativeStream{});
      return;
    case Command::Kind::kCopy:
      streaming_copy({command.target, command.size_bytes}, {command.source, command.size_bytes});
      return;
    case Command::Kind::kRecord:
      command.event->run_record(command.event_number);
      return;
    case Command::Kind::kWait:
      command.event->run_wait(command.event_number);
      return;
  }
}

// Every event of this device is a CpuEvent: devices are not mixed.
CpuEvent& own(Event& event) {
  auto* const result = dynamic_cast<CpuEvent*>(&event);
  TERRACE_CHECK(result != nullptr);
  return *result;
}

// A ring of commands, and the thread that runs them. A command leaves the ring when it has
// completed.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::string_view name) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      throw EnvironmentError(
          fmt::format("cannot start the thread of stream '{}': {}", name, error.what()),
          remedy_for_threads());
    }
    // The kernel keeps only 15 characters.
    ::pthread_setname_np(thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  }

  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  ~CpuStream() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
      queued_changed_.notify_one();
    }
    thread_.join();
  }

  void run(StreamTask& task) override { queue({.kind = Command::Kind::kRun, .task = &task}); }

  void copy(std::span<std::byte> target, std::span<const std::byte> source) override {
    TERRACE_CHECK_EQ(target.size(), source.size());
    if (target.empty()) return;
    queue({.kind = Command::Kind::kCopy,
           .target = target.data(),
           .source = source.data(),
           .size_bytes = target.size()});
  }

  void record(Event& event) override {
    CpuEvent& named = own(event);
    queue({.kind = Command::Kind::kRecord, .event = &named, .event_number = named.queue_record()});
  }

  void wait(Event& event) override {
    CpuEvent& named = own(event);
    const std::uint64_t number = named.queue_wait();
    if (number == 0) return;
    queue({.kind = Command::Kind::kWait, .event = &named, .event_number = number});
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    const std::uint64_t last = queued_;
    completed_changed_.wait(lock, [this, last] { return completed_ >= last; });
  }

 private:
  void queue(const Command& command) {
    std::unique_lock lock(mutex_);
    completed_changed_.wait(lock, [this] { return queued_ - completed_ < kQueueCommands; });
    ring_.at(queued_ % kQueueCommands) = command;
    ++queued_;
    queued_changed_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      queued_changed_.wait(lock, [this] { return queued_ != completed_ || stopping_; });
      if (queued_ == completed_) return;
      const Command command = ring_.at(completed_ % kQueueCommands);
      lock.unlock();
      execute(command);
      lock.lock();
      ++completed_;
      completed_changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable queued_changed_;
  std::condition_variable completed_changed_;
  // Guarded by mutex_. Counts never wrap; the ring holds [completed_, queued_).
  std::array<Command, kQueueCommands> ring_;
  std::uint64_t queued_ = 0;
  std::uint64_t completed_ = 0;
  bool stopping_ = false;
  // Declared last, because the thread uses all members above.
  std::thread thread_;
};

class CpuDeviceMemory final : public DeviceMemory {
 public:
  CpuDeviceMemory(DeviceCapacity& capacity, std::size_t size_bytes)
      : charge_(capacity, size_bytes), memory_(size_bytes, HostMemoryOptions{}) {}

  std::span<std::byte> bytes() const override { return memory_.bytes(); }

 private:
  DeviceCharge charge_;
  HostMemory memory_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::size_t capacity_bytes) : capacity_(capacity_bytes) {}

  std::string_view name() const override { return "cpu"; }

  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<CpuDeviceMemory>(capacity_, size_bytes);
  }

  std::unique_ptr<Stream> create_stream(std::string_view name) override {
    return std::make_unique<CpuStream>(name);
  }

  std::unique_ptr<Event> create_event() override { return std::make_unique<CpuEvent>(); }

  std::size_t free_bytes() const override { return capacity_.free_bytes(); }

 private:
  DeviceCapacity capacity_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(std::size_t capacity_bytes) {
  return std::make_unique<CpuDevice>(capacity_bytes);
}

}  // namespace terrace
