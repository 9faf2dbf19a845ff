#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "parallel/host_over_devices.h"
#include "parallel/nccl/nccl_communicator.h"
#include "parallel/self_communicator.h"
#include "tests/gpu/gpu_presence.h"
#include "tests/gpu/take_stream.h"

// NCCL with one rank: everything that can be tested on one GPU.
namespace terrace {
namespace {

class GpuNccl : public testing::Test {
 protected:
  static constexpr std::int64_t kElements = 1023;

  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
    device_ = make_cuda_device({.ordinal = 0, .capacity_bytes = std::size_t{1} << 20});
    memory_ = device_->allocate(2 * kElements * sizeof(float));
    stream_ = device_->create_stream("nccl");
    stream_->run(take_);
    communicator_ = make_nccl_communicator(*meeting_, "world", 0);
    for (std::int64_t i = 0; i < kElements; ++i) before_.push_back(0.5F * static_cast<float>(i));
    stream_->copy(first().data_span, std::as_bytes(std::span(before_)));
  }

  struct Half {
    TensorView view;
    std::span<std::byte> data_span;
  };
  Half half(std::size_t index) const {
    constexpr std::size_t kBytes = kElements * sizeof(float);
    const std::span<std::byte> bytes = memory_->bytes().subspan(index * kBytes, kBytes);
    return {view(bytes.data(), DType::kF32, kElements), bytes};
  }
  Half first() const { return half(0); }
  Half second() const { return half(1); }

  std::vector<float> read(const Half& from) {
    std::vector<float> values(kElements);
    stream_->copy(std::as_writable_bytes(std::span(values)), from.data_span);
    stream_->synchronize();
    return values;
  }

  std::unique_ptr<Communicator> meeting_ = make_self_communicator("meeting");
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<Stream> stream_;
  test::TakeStream take_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<float> before_;
};

TEST_F(GpuNccl, OneRankKeepsItsValues) {
  communicator_->all_reduce(first().view, ReduceOp::kSum, take_.native);
  communicator_->broadcast(first().view, 0, take_.native);
  EXPECT_EQ(read(first()), before_);
  communicator_->reduce_scatter(second().view, first().view, ReduceOp::kSum, take_.native);
  EXPECT_EQ(read(second()), before_);
  communicator_->all_gather(first().view, second().view, take_.native);
  communicator_->all_to_all(second().view, first().view, take_.native);
  EXPECT_EQ(read(second()), before_);
  const auto part = communicator_->split(0, 0, "part");
  EXPECT_EQ(part->size(), 1);
}

TEST_F(GpuNccl, RefusesWhatNcclCannotDo) {
  EXPECT_THROW(communicator_->all_reduce(first().view, ReduceOp::kMax, take_.native), CommError);
}

TEST_F(GpuNccl, AnAbortEndsEveryCallWithItsReason) {
  EXPECT_EQ(communicator_->abort_reason(), std::nullopt);
  const auto part = communicator_->split(0, 0, "part");
  communicator_->abort("enough");
  EXPECT_EQ(part->abort_reason(), "enough");
  EXPECT_EQ(meeting_->abort_reason(), "enough");
  EXPECT_THROW(communicator_->all_reduce(first().view, ReduceOp::kSum, take_.native), CommError);
  EXPECT_THROW(part->all_reduce(first().view, ReduceOp::kSum, take_.native), CommError);
}

TEST_F(GpuNccl, AnAbortOnTheHostEndsItToo) {
  meeting_->abort("the disk is full");
  for (int looks = 0; !communicator_->abort_reason() && looks < 1000; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(communicator_->abort_reason(), "the disk is full");
}

// Works as under torchrun: the id comes by the rendezvous, and host memory goes over the GPU.
TEST_F(GpuNccl, HostMemoryOfOneRankKeepsItsValues) {
  const auto device = make_cuda_device({.ordinal = 0, .capacity_bytes = std::size_t{1} << 26});
  const auto host = make_host_communicator(make_nccl_world(LaunchEnvironment{}, "job", 0), *device);
  std::vector<float> values = before_;
  host->all_reduce(view(std::span(values)), ReduceOp::kSum, {});
  host->broadcast(view(std::span(values)), 0, {});
  EXPECT_EQ(values, before_);
  const auto part = host->split(0, 0, "part");
  part->all_gather(view(std::span(values)), view(std::span(before_)), {});
  EXPECT_EQ(values, before_);
  std::int32_t flag = 1;
  host->all_reduce(view(std::span(&flag, 1)), ReduceOp::kMax, {});
  EXPECT_EQ(flag, 1);
}

}  // namespace
}  // namespace terrace
