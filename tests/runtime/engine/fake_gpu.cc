#include "tests/runtime/engine/fake_gpu.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "memory/cpu/cpu_device.h"
#include "parallel/rank_order.h"
#include "parallel/rank_order_sums.h"
#include "runtime/step/program.h"
#include "tests/runtime/engine/fake_gpu_communicator.h"
#include "tests/runtime/engine/fake_gpu_kernels.h"
#include "tests/runtime/engine/fake_gpu_memory.h"

namespace terrace::test {
namespace {

// The size of the pieces in which sums over ranks are made. It is smaller than most of the sums.
constexpr std::size_t kFakePieceBytes = 16 * kKiB;

class FakeMemory final : public DeviceMemory {
 public:
  FakeMemory(FakeGpuState& state, std::size_t size_bytes)
      : state_(state), charge_(state.capacity, size_bytes), mapping_(size_bytes) {
    state_.add(mapping_);
  }
  ~FakeMemory() override { state_.remove(mapping_); }

  std::span<std::byte> bytes() const override { return mapping_.untouchable(); }

 private:
  FakeGpuState& state_;
  DeviceCharge charge_;
  DoubleMapping mapping_;
};

class FakeEvent final : public Event {
 public:
  FakeEvent(FakeGpuState& state, std::unique_ptr<Event> event)
      : state_(state), event_(std::move(event)) {}

  void wait() override {
    state_.waits();
    state_.call("wait for an event");
    event_->wait();
  }
  bool is_reached() const override {
    state_.call("ask an event");
    return event_->is_reached();
  }
  std::int64_t reached_ns() const override { return event_->reached_ns(); }

  Event& event() { return *event_; }

 private:
  FakeGpuState& state_;
  const std::unique_ptr<Event> event_;
};

Event& inner(Event& event) {
  auto* const fake = dynamic_cast<FakeEvent*>(&event);
  TERRACE_CHECK(fake != nullptr);
  return fake->event();
}

class QueuedWork final : public StreamTask {
 public:
  explicit QueuedWork(std::function<void()> work) : work_(std::move(work)) {}

  void run(NativeStream /*stream*/) noexcept override {
    work_();
    has_run_.store(true);
  }
  bool has_run() const { return has_run_.load(); }

 private:
  const std::function<void()> work_;
  std::atomic<bool> has_run_{false};
};

class FakeStream final : public Stream, public FakeGpuQueue {
 public:
  FakeStream(FakeGpuState& state, WorkerArena& workers, const KernelTable& kernels,
             std::string_view name, std::unique_ptr<Stream> stream)
      : state_(state),
        workers_(workers),
        kernels_(kernels),
        is_lane_(is_lane(name)),
        stream_(std::move(stream)) {}

  void run(StreamTask& task) override {
    if (is_lane_) state_.issues_lane();
    state_.call("run");
    task.run(NativeStream{static_cast<FakeGpuQueue*>(this)});
  }
  void copy(std::span<std::byte> target, std::span<const std::byte> source) override {
    if (is_lane_) state_.issues_lane();
    state_.call("copy");
    stream_->copy({state_.real_or_host(target.data()), target.size()},
                  {state_.real_or_host(source.data()), source.size()});
  }
  void record(Event& event) override {
    state_.call("record");
    stream_->record(inner(event));
  }
  void wait(Event& event) override {
    state_.call("wait");
    stream_->wait(inner(event));
  }
  // Waits before it may fail, so that a failed call leaves nothing under way.
  void synchronize() override {
    state_.waits();
    stream_->synchronize();
    state_.call("synchronize");
  }

  void queue(std::function<void()> work) override {
    state_.call("launch");
    while (!queued_.empty() && queued_.front().has_run()) queued_.pop_front();
    stream_->run(queued_.emplace_back(std::move(work)));
  }
  const FakeGpuState& state() const override { return state_; }
  WorkerArena& workers() override { return workers_; }
  const KernelTable& host_kernels() const override { return kernels_; }

 private:
  // Recognizes lanes by the names that the executor gives (runtime/step/program.h).
  static bool is_lane(std::string_view name) {
    return name == name_of(Lane::kCompute) || name == name_of(Lane::kUpload) ||
           name == name_of(Lane::kDownload);
  }

  FakeGpuState& state_;
  WorkerArena& workers_;
  const KernelTable& kernels_;
  const bool is_lane_;
  std::deque<QueuedWork> queued_;  // outlives the stream, which runs it
  const std::unique_ptr<Stream> stream_;
};

class FakeGpu final : public Device {
 public:
  FakeGpu(std::size_t capacity_bytes, const FakeGpuOptions& options)
      : state_(capacity_bytes, options.failing_call),
        kernels_(fake_gpu_host_kernels(options.has_shared_kernels)),
        workers_(1),
        streams_(make_cpu_device(0)) {}

  std::string_view name() const override { return "fake gpu"; }
  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<FakeMemory>(state_, size_bytes);
  }
  std::unique_ptr<Stream> create_stream(std::string_view name) override {
    return std::make_unique<FakeStream>(state_, workers_, kernels_, name,
                                        streams_->create_stream(name));
  }
  std::unique_ptr<Event> create_event() override {
    return std::make_unique<FakeEvent>(state_, streams_->create_event());
  }
  std::size_t free_bytes() const override { return state_.capacity.free_bytes(); }

 private:
  FakeGpuState state_;
  const KernelTable& kernels_;
  WorkerArena workers_;  // no more than the engine has, which sizes workspaces by them
  const std::unique_ptr<Device> streams_;  // only its streams and events are used
};

class FakeArithmetic final : public DeviceArithmetic {
 public:
  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<CommonFakeMemory>(size_bytes);
  }
  void add_ranks(const TensorView& sum, const std::byte* parts, int ranks,
                 NativeStream stream) override {
    FakeGpuQueue& queue = *static_cast<FakeGpuQueue*>(stream.handle);
    const auto elements = static_cast<std::size_t>(sum.elements());
    std::byte* const target = queue.state().real(sum.data);
    std::vector<const std::byte*> sources;
    for (int rank = 0; rank < ranks; ++rank) {
      sources.push_back(queue.state().real(parts) +
                        static_cast<std::size_t>(rank) * elements * size_of(sum.dtype));
    }
    queue.queue([=, dtype = sum.dtype] {
      reduce_in_rank_order(std::span(&target, 1), sources, elements, dtype, ReduceOp::kSum);
    });
  }
  void pack_rows(std::byte* target, const StridedRows& source, NativeStream stream) override {
    FakeGpuQueue& queue = *static_cast<FakeGpuQueue*>(stream.handle);
    const auto rows = static_cast<std::size_t>(source.rows);
    const std::size_t row_bytes = static_cast<std::size_t>(source.width) * size_of(source.dtype);
    const std::size_t pitch = static_cast<std::size_t>(source.stride) * size_of(source.dtype);
    queue.queue([=, to = queue.state().real(target), from = queue.state().real(source.data)] {
      for (std::size_t row = 0; row < rows; ++row) {
        std::memcpy(to + row * row_bytes, from + row * pitch, row_bytes);
      }
    });
  }
};

class FakeComputeDevice final : public ComputeDevice {
 public:
  FakeComputeDevice(std::size_t capacity_bytes, const FakeGpuOptions& options)
      : table_(fake_gpu_kernels(options.has_shared_kernels)), device_(capacity_bytes, options) {}

  Device& device() override { return device_; }
  LaneKernels kernels() override { return {&table_, &fake_gpu_update}; }
  std::unique_ptr<HostRegistration> lock(std::span<std::byte> /*host_memory*/) override {
    return nullptr;
  }

 private:
  const KernelTable& table_;
  FakeGpu device_;
};

}  // namespace

const KernelTable& FakeGpuBackend::kernels() const {
  return fake_gpu_kernels(options_.has_shared_kernels);
}

std::unique_ptr<ComputeDevice> FakeGpuBackend::make(std::size_t capacity_bytes) const {
  return std::make_unique<FakeComputeDevice>(capacity_bytes, options_);
}

std::unique_ptr<Communicator> FakeGpuBackend::make_communicator(
    Communicator& meeting, const CommunicatorOptions& /*options*/) const {
  return make_rank_order_sums(
      make_fake_gpu_communicator(meeting.split(0, meeting.rank(), meeting.name()),
                                 options_.failing_collective, options_.kinds_of_calls),
      std::make_shared<FakeArithmetic>(), kFakePieceBytes);
}

std::unique_ptr<Device> make_fake_gpu(std::size_t capacity_bytes) {
  return std::make_unique<FakeGpu>(capacity_bytes, FakeGpuOptions());
}

}  // namespace terrace::test
