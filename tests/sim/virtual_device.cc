#include "tests/sim/virtual_device.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/check.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

class VirtualEvent final : public Event {
 public:
  void wait() override {
    if (!is_reached()) throw Hang("a host lane waits for an event that is not reached");
  }
  bool is_reached() const override { return reached_ >= recorded_; }
  std::int64_t reached_ns() const override { return reached_ns_; }

  std::uint64_t record() { return ++recorded_; }
  std::uint64_t recorded() const { return recorded_; }
  bool has_reached(std::uint64_t number) const { return reached_ >= number; }
  void reach(std::uint64_t number, std::int64_t now_ns) {
    reached_ = number;
    reached_ns_ = now_ns;
  }

 private:
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  std::int64_t reached_ns_ = 0;
};

struct Command {
  enum class Kind : std::uint8_t { kRun, kCopy, kRecord, kWait };
  Kind kind = Kind::kRun;
  StreamTask* task = nullptr;
  std::span<std::byte> target = {};
  std::span<const std::byte> source = {};
  VirtualEvent* event = nullptr;
  std::uint64_t number = 0;
};

class VirtualStream final : public Stream, public Actor {
 public:
  VirtualStream(VirtualTime& time, std::int64_t command_ns) : time_(time), command_ns_(command_ns) {
    time_.add(*this);
  }
  ~VirtualStream() override { time_.remove(*this); }
  VirtualStream(const VirtualStream&) = delete;
  VirtualStream& operator=(const VirtualStream&) = delete;

  void run(StreamTask& task) override {
    queue_.push_back({.kind = Command::Kind::kRun, .task = &task});
  }
  void copy(std::span<std::byte> target, std::span<const std::byte> source) override {
    TERRACE_CHECK_EQ(target.size(), source.size());
    queue_.push_back({.kind = Command::Kind::kCopy, .target = target, .source = source});
  }
  void record(Event& event) override { queue_event(Command::Kind::kRecord, event); }
  void wait(Event& event) override { queue_event(Command::Kind::kWait, event); }
  // Runs only the commands of this stream, which must not wait for others.
  void synchronize() override {
    while (!queue_.empty()) {
      TERRACE_CHECK(due_ns().has_value());
      act();
    }
  }

  std::optional<std::int64_t> due_ns() override {
    if (queue_.empty()) return std::nullopt;
    const Command& head = queue_.front();
    if (head.kind == Command::Kind::kWait && !head.event->has_reached(head.number)) {
      return std::nullopt;
    }
    if (!due_ns_.has_value()) {
      const bool works = head.kind == Command::Kind::kRun || head.kind == Command::Kind::kCopy;
      due_ns_ = time_.now_ns() + (works ? time_.draw_latency(command_ns_) : 0);
    }
    return due_ns_;
  }

  void act() override {
    const Command head = queue_.front();
    queue_.pop_front();
    due_ns_.reset();
    switch (head.kind) {
      case Command::Kind::kRun:
        return head.task->run(NativeStream{});
      case Command::Kind::kCopy:
        std::ranges::copy(head.source, head.target.begin());
        return;
      case Command::Kind::kRecord:
        return head.event->reach(head.number, time_.now_ns());
      case Command::Kind::kWait:
        return;
    }
  }

 private:
  void queue_event(Command::Kind kind, Event& event) {
    auto* own = dynamic_cast<VirtualEvent*>(&event);
    TERRACE_CHECK(own != nullptr);
    const std::uint64_t number = kind == Command::Kind::kRecord ? own->record() : own->recorded();
    queue_.push_back({.kind = kind, .event = own, .number = number});
  }

  VirtualTime& time_;
  const std::int64_t command_ns_;
  std::deque<Command> queue_;
  std::optional<std::int64_t> due_ns_;  // of the first command, once it can run
};

class VirtualMemory final : public DeviceMemory {
 public:
  explicit VirtualMemory(std::size_t size_bytes) : memory_(size_bytes, 4096) {}
  std::span<std::byte> bytes() const override { return memory_.span(); }

 private:
  mutable AlignedMemory memory_;
};

class VirtualDevice final : public Device {
 public:
  VirtualDevice(VirtualTime& time, std::int64_t command_ns)
      : time_(time), command_ns_(command_ns) {}

  std::string_view name() const override { return "virtual"; }
  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<VirtualMemory>(size_bytes);
  }
  std::unique_ptr<Stream> create_stream(std::string_view /*name*/) override {
    return std::make_unique<VirtualStream>(time_, command_ns_);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<VirtualEvent>(); }
  std::size_t free_bytes() const override { return std::size_t{1} << 40; }

 private:
  VirtualTime& time_;
  const std::int64_t command_ns_;
};

}  // namespace

std::unique_ptr<Device> make_virtual_device(VirtualTime& time, std::int64_t command_ns) {
  return std::make_unique<VirtualDevice>(time, command_ns);
}

}  // namespace terrace
