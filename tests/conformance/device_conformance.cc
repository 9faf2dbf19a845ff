#include "tests/conformance/device_conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "memory/device.h"
#include "memory/host/host_memory.h"

// The host never reads device memory here: bytes go in and come out by copies, and the effect of a
// task is examined only after the stream has been waited for.
namespace terrace {
namespace {

constexpr std::size_t kCapacity = kDeviceConformanceCapacity;

HostMemory host(std::size_t size_bytes) { return {size_bytes, HostMemoryOptions{}}; }

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST_P(DeviceConformanceTest, HasAName) { EXPECT_FALSE(device_->name().empty()); }

TEST_P(DeviceConformanceTest, AllocatesExactlyAndAligned) {
  for (const std::size_t size : {1UL, 4096UL, 5000UL, kMiB + 3}) {
    const std::size_t free_before = device_->free_bytes();
    const auto memory = device_->allocate(size);
    EXPECT_EQ(memory->bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->bytes().data()) % 4096, 0U);
    EXPECT_LE(device_->free_bytes(), free_before - size);
  }
}

TEST_P(DeviceConformanceTest, GivesOutItsWholeCapacity) {
  const std::size_t free_bytes = device_->free_bytes();
  const auto first = device_->allocate(free_bytes / 2);
  const auto rest = device_->allocate(free_bytes - free_bytes / 2);
  EXPECT_EQ(device_->free_bytes(), 0U);
}

TEST_P(DeviceConformanceTest, RefusesPastItsCapacityAndRecovers) {
  EXPECT_THROW(device_->allocate(kCapacity + 1), OutOfMemory);
  EXPECT_THROW(device_->allocate(SIZE_MAX), OutOfMemory);
  auto most = device_->allocate(kCapacity / 4 * 3);
  try {
    device_->allocate(kCapacity / 2);
    FAIL() << "went past the capacity";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(format_size(kCapacity / 2)));
    EXPECT_THAT(error.what(), testing::HasSubstr(format_size(kCapacity / 4)));
    EXPECT_FALSE(error.remedy().empty());
  }
  most.reset();
  EXPECT_EQ(device_->allocate(kCapacity / 2)->bytes().size(), kCapacity / 2);
}

TEST_P(DeviceConformanceTest, CapacityHoldsUnderConcurrentAllocation) {
  constexpr std::size_t kPiece = kCapacity / 4;
  const auto kept = device_->allocate(kPiece + 1);
  // The count goes up after an allocation and down before its end, so it is never more than the
  // device has given out.
  std::atomic<std::size_t> held{0};
  std::atomic<std::size_t> held_at_most{0};
  const auto hold = [&](std::size_t size_bytes) {
    const std::size_t now = held.fetch_add(size_bytes) + size_bytes;
    std::size_t most = held_at_most.load();
    while (now > most && !held_at_most.compare_exchange_weak(most, now)) continue;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        try {
          const auto first = device_->allocate(kPiece);
          hold(kPiece);
          std::this_thread::yield();
          held.fetch_sub(kPiece);
        } catch (const OutOfMemory&) {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(kPiece, held_at_most.load());
  EXPECT_LE(held_at_most.load(), 2 * kPiece);
  EXPECT_EQ(device_->free_bytes(), kCapacity - kPiece - 1);
}

TEST_P(DeviceConformanceTest, CopiesAnySizeAndOffset) {
  const auto stream = device_->create_stream("copy");
  const auto first = device_->allocate(kMiB + 100);
  const auto second = device_->allocate(kMiB + 100);
  const HostMemory source = host(kMiB + 100);
  const HostMemory target = host(kMiB + 100);
  fill(source.bytes(), 1);
  for (const std::size_t size : {0UL, 1UL, 3UL, 64UL, 4097UL, kMiB + 1}) {
    for (const std::size_t offset : {0UL, 1UL, 33UL}) {
      std::ranges::fill(target.bytes(), std::byte{0});
      stream->copy(first->bytes().subspan(offset, size), source.bytes().subspan(7, size));
      stream->copy(second->bytes().subspan(2, size), first->bytes().subspan(offset, size));
      stream->copy(target.bytes().subspan(offset, size), second->bytes().subspan(2, size));
      stream->synchronize();
      EXPECT_TRUE(std::ranges::equal(target.bytes().subspan(offset, size),
                                     source.bytes().subspan(7, size)));
      const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
      EXPECT_TRUE(std::ranges::all_of(target.bytes().first(offset), is_zero));
      EXPECT_TRUE(std::ranges::all_of(target.bytes().subspan(offset + size), is_zero));
    }
  }
}

// Each copy reads the bytes that the copy before wrote, and there are more copies than a queue has
// room for.
TEST_P(DeviceConformanceTest, RunsInOrderPastTheQueueBound) {
  constexpr std::size_t kSlots = 2000;
  const auto stream = device_->create_stream("chain");
  const auto memory = device_->allocate(kSlots * 8);
  const HostMemory source = host(8);
  const HostMemory target = host(8);
  fill(source.bytes(), 2);
  stream->copy(memory->bytes().first(8), source.bytes());
  for (std::size_t slot = 1; slot < kSlots; ++slot) {
    stream->copy(memory->bytes().subspan(slot * 8, 8), memory->bytes().subspan(slot * 8 - 8, 8));
  }
  stream->copy(target.bytes(), memory->bytes().last(8));
  stream->synchronize();
  EXPECT_EQ(copy_of(target.bytes()), copy_of(source.bytes()));
}

class AppendTask final : public StreamTask {
 public:
  AppendTask(std::vector<int>& log, int number) : log_(log), number_(number) {}
  void run(NativeStream) noexcept override { log_.push_back(number_); }

 private:
  std::vector<int>& log_;
  const int number_;
};

TEST_P(DeviceConformanceTest, RunsEachTaskOnceInOrder) {
  std::vector<int> log;
  std::vector<int> expected;
  std::vector<AppendTask> tasks;
  for (int i = 0; i < 700; ++i) {
    tasks.emplace_back(log, i);
    expected.push_back(i);
  }
  log.reserve(tasks.size());
  const auto stream = device_->create_stream("tasks");
  for (AppendTask& task : tasks) stream->run(task);
  stream->synchronize();
  EXPECT_EQ(log, expected);
}

TEST_P(DeviceConformanceTest, SynchronizeOnAnIdleStreamReturns) {
  const auto stream = device_->create_stream("idle");
  stream->synchronize();
  stream->synchronize();
}

TEST_P(DeviceConformanceTest, DestroyingAStreamWaitsForWhatIsQueued) {
  const HostMemory source = host(kMiB);
  const HostMemory target = host(kMiB);
  for (std::uint64_t round = 0; round < 8; ++round) {
    fill(source.bytes().first(4096), round);
    std::vector<int> log;
    AppendTask task(log, 1);
    const auto memory = device_->allocate(kMiB);
    {
      const auto stream = device_->create_stream("a name longer than the system's limit");
      stream->copy(memory->bytes(), source.bytes());
      stream->copy(target.bytes(), memory->bytes());
      stream->run(task);
    }
    EXPECT_EQ(log.size(), 1U);
    EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
  }
}

TEST_P(DeviceConformanceTest, AnEventNeverRecordedCountsAsReached) {
  const auto stream = device_->create_stream("idle");
  const auto event = device_->create_event();
  EXPECT_TRUE(event->is_reached());
  event->wait();
  stream->wait(*event);
  stream->synchronize();
}

TEST_P(DeviceConformanceTest, AnEventTellsWhenItsPointIsReached) {
  const SystemClock clock;
  const auto stream = device_->create_stream("timed");
  const auto first = device_->create_event();
  const auto second = device_->create_event();
  const auto memory = device_->allocate(4 * kMiB);
  const HostMemory source = host(4 * kMiB);
  const std::int64_t before = clock.now_ns();
  stream->record(*first);
  stream->copy(memory->bytes(), source.bytes());
  stream->record(*second);
  second->wait();
  const std::int64_t after = clock.now_ns();
  EXPECT_TRUE(first->is_reached());
  EXPECT_TRUE(second->is_reached());
  EXPECT_LE(before - GetParam().clock_slack_ns, first->reached_ns());
  EXPECT_LT(first->reached_ns(), second->reached_ns());
  EXPECT_LE(second->reached_ns(), after + GetParam().clock_slack_ns);
}

TEST_P(DeviceConformanceTest, AnEventRecordedAgainStandsForTheLastTime) {
  const auto stream = device_->create_stream("again");
  const auto event = device_->create_event();
  const auto memory = device_->allocate(64 * kKiB);
  const HostMemory source = host(64 * kKiB);
  const HostMemory target = host(64 * kKiB);
  std::int64_t last_ns = 0;
  for (std::uint64_t round = 0; round < 100; ++round) {
    fill(source.bytes().first(64), round);
    stream->copy(memory->bytes(), source.bytes());
    stream->copy(target.bytes(), memory->bytes());
    stream->record(*event);
    event->wait();
    EXPECT_TRUE(event->is_reached());
    EXPECT_TRUE(std::ranges::equal(target.bytes().first(64), source.bytes().first(64)));
    EXPECT_LT(last_ns, event->reached_ns());
    last_ns = event->reached_ns();
  }
}

TEST_P(DeviceConformanceTest, AnyThreadMayWaitForAnEvent) {
  const auto stream = device_->create_stream("waited");
  const auto event = device_->create_event();
  const auto memory = device_->allocate(kMiB);
  const HostMemory source = host(kMiB);
  const HostMemory target = host(kMiB);
  fill(source.bytes(), 3);
  stream->copy(memory->bytes(), source.bytes());
  stream->copy(target.bytes(), memory->bytes());
  stream->record(*event);
  std::atomic<int> right{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      event->wait();
      if (std::ranges::equal(target.bytes(), source.bytes())) right.fetch_add(1);
    });
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(right.load(), 4);
}

// Each hop reads the slot that the hop before wrote, on another stream.
TEST_P(DeviceConformanceTest, StreamsPassABatonThroughEvents) {
  constexpr std::size_t kSize = 32 * kKiB;
  constexpr std::size_t kHops = 120;
  std::vector<std::unique_ptr<Event>> events;
  for (std::size_t hop = 0; hop < kHops; ++hop) events.push_back(device_->create_event());
  const auto memory = device_->allocate(kHops * kSize);
  const HostMemory source = host(kSize);
  const HostMemory target = host(kSize);
  fill(source.bytes(), 4);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(device_->create_stream("baton"));
  streams[0]->copy(memory->bytes().first(kSize), source.bytes());
  streams[0]->record(*events[0]);
  for (std::size_t hop = 1; hop < kHops; ++hop) {
    Stream& stream = *streams[hop % 3];
    stream.wait(*events[hop - 1]);
    stream.copy(memory->bytes().subspan(hop * kSize, kSize),
                memory->bytes().subspan((hop - 1) * kSize, kSize));
    stream.record(*events[hop]);
  }
  streams[0]->wait(*events.back());
  streams[0]->copy(target.bytes(), memory->bytes().last(kSize));
  streams[0]->synchronize();
  EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
}

TEST_P(DeviceConformanceTest, EachIssuingThreadWithItsStream) {
  const HostMemory source = host(256 * kKiB);
  fill(source.bytes(), 5);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = device_->create_stream("own");
      const auto event = device_->create_event();
      const auto memory = device_->allocate(64 * kKiB);
      const HostMemory target = host(64 * kKiB);
      const auto part = source.bytes().subspan(t * 64 * kKiB, 64 * kKiB);
      for (int round = 0; round < 30; ++round) {
        stream->copy(memory->bytes(), part);
        stream->copy(target.bytes(), memory->bytes());
        stream->record(*event);
        event->wait();
      }
      if (std::ranges::equal(target.bytes(), part)) right.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 4);
}

// A random program of copies between slots of host and device memory, on several streams. If two
// copies on different streams touch the same slot, and at least one writes it, an event orders
// them. Nothing else is ordered. However the streams interleave, the slots must end as if the
// copies had run one by one.
class RandomGraph {
 public:
  static constexpr std::size_t kSlots = 12;
  static constexpr std::size_t kStreams = 4;
  static constexpr std::size_t kSlotBytes = 4096;

  RandomGraph(Device& device, std::uint64_t seed)
      : random_(seed),
        device_memory_(device.allocate(kSlots / 2 * kSlotBytes)),
        host_memory_(kSlots / 2 * kSlotBytes, HostMemoryOptions{}) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(device.create_stream("graph"));
    for (std::size_t i = 0; i < kCopies; ++i) events_.push_back(device.create_event());
    expected_.resize(kSlots * kSlotBytes);
    fill(expected_, seed);
  }

  void run() {
    upload();
    for (std::size_t number = 0; number < kCopies; ++number) {
      const std::size_t source = random_() % kSlots;
      const std::size_t target = (source + 1 + random_() % (kSlots - 1)) % kSlots;
      issue(number, source, target);
      std::memcpy(&expected_[target * kSlotBytes], &expected_[source * kSlotBytes], kSlotBytes);
    }
    for (const auto& stream : streams_) stream->synchronize();
  }

  std::vector<std::byte> result() {
    std::vector<std::byte> bytes(kSlots * kSlotBytes);
    const HostMemory staging(kSlots / 2 * kSlotBytes, HostMemoryOptions{});
    streams_[0]->copy(staging.bytes(), device_memory_->bytes());
    streams_[0]->synchronize();
    std::ranges::copy(staging.bytes(), bytes.begin());
    std::ranges::copy(host_memory_.bytes(),
                      bytes.begin() + static_cast<std::ptrdiff_t>(staging.bytes().size()));
    return bytes;
  }

  const std::vector<std::byte>& expected() const { return expected_; }

 private:
  static constexpr std::size_t kCopies = 400;

  struct Copy {
    std::size_t stream = 0;
    std::size_t source = 0;
    std::size_t target = 0;
  };

  std::span<std::byte> slot(std::size_t index) {
    if (index < kSlots / 2) return device_memory_->bytes().subspan(index * kSlotBytes, kSlotBytes);
    return host_memory_.bytes().subspan((index - kSlots / 2) * kSlotBytes, kSlotBytes);
  }

  void upload() {
    const HostMemory staging(kSlots / 2 * kSlotBytes, HostMemoryOptions{});
    const auto middle = expected_.begin() + static_cast<std::ptrdiff_t>(staging.bytes().size());
    std::copy(expected_.begin(), middle, staging.bytes().begin());
    std::copy(middle, expected_.end(), host_memory_.bytes().begin());
    streams_[0]->copy(device_memory_->bytes(), staging.bytes());
    streams_[0]->synchronize();
  }

  void issue(std::size_t number, std::size_t source, std::size_t target) {
    const Copy copy = {random_() % kStreams, source, target};
    Stream& stream = *streams_[copy.stream];
    for (std::size_t other = 0; other < copies_.size(); ++other) {
      const Copy& before = copies_[other];
      const bool conflicts =
          before.target == source || before.target == target || before.source == target;
      if (conflicts && before.stream != copy.stream) stream.wait(*events_[other]);
    }
    stream.copy(slot(target), slot(source));
    stream.record(*events_[number]);
    copies_.push_back(copy);
  }

  std::mt19937_64 random_;
  std::unique_ptr<DeviceMemory> device_memory_;
  HostMemory host_memory_;
  std::vector<std::byte> expected_;
  std::vector<Copy> copies_;
  // Declared last, so destroyed first: a stream runs commands that refer to the events and the
  // memory.
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST_P(DeviceConformanceTest, RandomEventGraphsEndAsIfSequential) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    RandomGraph graph(*device_, seed);
    graph.run();
    EXPECT_EQ(graph.result(), graph.expected()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace terrace
