#include "memory/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/bytes.h"

// Counts the program's allocations, so that a test notices a call that allocates. Not inlined: the
// compiler would see malloc() on one side and delete on the other, and warn.
namespace {
std::atomic<std::int64_t> allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* memory = ::operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace terrace {
namespace {

// Holds up the stream it runs on until it is opened.
class Gate final : public StreamTask {
 public:
  void run(NativeStream) noexcept override { is_open_.wait(false); }
  void open() {
    is_open_.store(true);
    is_open_.notify_all();
  }

 private:
  std::atomic<bool> is_open_{false};
};

class CountTask final : public StreamTask {
 public:
  void run(NativeStream stream) noexcept override {
    thread_ = std::this_thread::get_id();
    native_ = stream.handle;
    runs_.fetch_add(1);
  }
  std::thread::id thread() const { return thread_; }
  void* native() const { return native_; }
  int runs() const { return runs_.load(); }

 private:
  std::thread::id thread_;
  void* native_ = this;
  std::atomic<int> runs_{0};
};

TEST(CpuDeviceTest, TasksRunOnTheThreadOfTheirStream) {
  const auto device = make_cpu_device(kMiB);
  const auto stream = device->create_stream("one");
  const auto other = device->create_stream("two");
  CountTask first;
  CountTask second;
  CountTask elsewhere;
  stream->run(first);
  stream->run(second);
  other->run(elsewhere);
  stream->synchronize();
  other->synchronize();
  EXPECT_NE(first.thread(), std::this_thread::get_id());
  EXPECT_EQ(first.thread(), second.thread());
  EXPECT_NE(first.thread(), elsewhere.thread());
  EXPECT_EQ(first.native(), nullptr);
}

TEST(CpuDeviceTest, TheHostMayReadItsMemory) {
  const auto device = make_cpu_device(kMiB);
  const auto stream = device->create_stream("copy");
  const auto memory = device->allocate(3);
  const std::vector<std::byte> source = {std::byte{1}, std::byte{2}, std::byte{3}};
  stream->copy(memory->bytes(), source);
  stream->synchronize();
  EXPECT_EQ(std::vector(memory->bytes().begin(), memory->bytes().end()), source);
}

TEST(CpuDeviceTest, NothingIsReachedWhileTheStreamIsHeldUp) {
  const auto device = make_cpu_device(kMiB);
  const auto event = device->create_event();
  const auto stream = device->create_stream("held");
  Gate gate;
  stream->run(gate);
  stream->record(*event);
  EXPECT_FALSE(event->is_reached());
  gate.open();
  event->wait();
  EXPECT_TRUE(event->is_reached());
}

TEST(CpuDeviceTest, WaitingStreamHoldsOnlyItself) {
  const auto device = make_cpu_device(kMiB);
  const auto event = device->create_event();
  const auto held = device->create_stream("held");
  const auto waiting = device->create_stream("waiting");
  const auto free = device->create_stream("free");
  Gate gate;
  CountTask after;
  CountTask meanwhile;
  held->run(gate);
  held->record(*event);
  waiting->wait(*event);
  waiting->run(after);
  free->run(meanwhile);
  free->synchronize();
  EXPECT_EQ(meanwhile.runs(), 1);
  EXPECT_EQ(after.runs(), 0);
  EXPECT_FALSE(event->is_reached());
  gate.open();
  waiting->synchronize();
  EXPECT_EQ(after.runs(), 1);
}

// The second record is held up for good, and a waiter for the first must not notice that.
TEST(CpuDeviceTest, StreamWaitsForTheRecordBeforeTheCall) {
  const auto device = make_cpu_device(kMiB);
  const auto event = device->create_event();
  const auto recording = device->create_stream("recording");
  const auto waiting = device->create_stream("waiting");
  Gate first;
  Gate second;
  CountTask after;
  recording->run(first);
  recording->record(*event);
  waiting->wait(*event);
  waiting->run(after);
  recording->run(second);
  recording->record(*event);
  first.open();
  waiting->synchronize();
  EXPECT_EQ(after.runs(), 1);
  EXPECT_FALSE(event->is_reached());
  second.open();
  event->wait();
}

TEST(CpuDeviceTest, DestroyingAnEventWaitsForCommandsThatNameIt) {
  const auto device = make_cpu_device(kMiB);
  auto event = device->create_event();
  const auto recording = device->create_stream("recording");
  const auto waiting = device->create_stream("waiting");
  Gate gate;
  CountTask after;
  recording->run(gate);
  recording->record(*event);
  waiting->wait(*event);
  waiting->run(after);
  std::thread opener([&gate] { gate.open(); });
  event.reset();
  opener.join();
  waiting->synchronize();
  EXPECT_EQ(after.runs(), 1);
}

// One command runs and 256 wait: the issuer of more is held up until the stream goes on.
TEST(CpuDeviceTest, AFullQueueHoldsUpItsIssuer) {
  constexpr int kTasks = 1000;
  constexpr int kRoom = 256;
  const auto device = make_cpu_device(kMiB);
  const auto stream = device->create_stream("full");
  Gate gate;
  CountTask task;
  std::atomic<int> issued{0};
  stream->run(gate);
  std::thread issuer([&] {
    for (int i = 0; i < kTasks; ++i) {
      stream->run(task);
      issued.fetch_add(1);
    }
  });
  while (issued.load() < kRoom - 1) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_LE(issued.load(), kRoom);
  gate.open();
  issuer.join();
  stream->synchronize();
  EXPECT_EQ(task.runs(), kTasks);
}

TEST(CpuDeviceTest, CallsDoNotAllocate) {
  const auto device = make_cpu_device(kMiB);
  const auto event = device->create_event();
  const auto stream = device->create_stream("frozen");
  const auto other = device->create_stream("frozen too");
  const auto memory = device->allocate(8192);
  CountTask task;
  stream->synchronize();
  const std::int64_t before = allocations.load();
  for (int round = 0; round < 500; ++round) {
    stream->run(task);
    stream->copy(memory->bytes().first(4096), memory->bytes().last(4096));
    stream->record(*event);
    other->wait(*event);
    other->synchronize();
  }
  event->wait();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(task.runs(), 500);
}

TEST(CpuDeviceTest, EmptyMemoryCostsNothing) {
  const auto device = make_cpu_device(100);
  const auto memory = device->allocate(0);
  EXPECT_TRUE(memory->bytes().empty());
  EXPECT_EQ(device->free_bytes(), 100U);
  EXPECT_EQ(device->allocate(100)->bytes().size(), 100U);
}

TEST(CpuDeviceDeathTest, CopyOfUnequalSizesIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        const auto device = make_cpu_device(kMiB);
        const auto memory = device->allocate(100);
        device->create_stream("s")->copy(memory->bytes().first(10), memory->bytes().last(20));
      },
      "10 and 20");
}

}  // namespace
}  // namespace terrace
