#include "parallel/host_over_devices.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "parallel/thread_communicator.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/runtime/engine/fake_gpu.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Communicators of host memory, for ranks that can meet only through their GPUs. The GPUs are fake.
namespace terrace {
namespace {

constexpr std::size_t kCapacityBytes = std::size_t{1} << 27;

class FakeGpuRunner final : public RankRunner {
 public:
  explicit FakeGpuRunner(int ranks) : ranks_(ranks), meeting_(ranks) {}

  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    auto threads = make_thread_communicators(ranks_, "world", options);
    std::vector<std::jthread> hosts;
    for (auto& own : threads) {
      hosts.emplace_back([&, meeting = std::move(own)] {
        const std::unique_ptr<Device> gpu = test::make_fake_gpu(kCapacityBytes);
        const std::unique_ptr<Communicator> ranks = make_host_communicator(
            test::FakeGpuBackend().exchange()->make_communicator(*meeting, options), *gpu);
        body(*ranks);
      });
    }
  }
  void meet() override { meeting_.arrive_and_wait(); }

 private:
  const int ranks_;
  std::barrier<> meeting_;
};

std::unique_ptr<RankRunner> fake_gpus(int ranks) { return std::make_unique<FakeGpuRunner>(ranks); }

INSTANTIATE_TEST_SUITE_P(HostOverDevices, CommunicatorConformanceTest,
                         testing::Values(CommunicatorFactory{"fake_gpus_1", 1, &fake_gpus},
                                         CommunicatorFactory{"fake_gpus_2", 2, &fake_gpus},
                                         CommunicatorFactory{"fake_gpus_3", 3, &fake_gpus}),
                         [](const auto& factory) { return factory.param.name; });

// The lists are longer than one piece that goes over the devices, and not a whole number of pieces.
// Their sums are exact.
TEST(HostOverDevicesPieces, AreSoManyAsItTakes) {
  constexpr std::int64_t kRanks = 3;
  constexpr std::size_t kPart = 700'001;
  FakeGpuRunner(kRanks).run({}, [](Communicator& ranks) {
    const auto rank = static_cast<float>(ranks.rank());
    const auto value = [](std::size_t i) { return static_cast<float>(i % 1000); };
    std::vector<float> all(kRanks * kPart);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = (rank + 1) * value(i);
    std::vector<float> part(kPart);
    ranks.reduce_scatter(view(std::span(part)), view(std::span(all)), ReduceOp::kSum, {});
    ranks.all_reduce(view(std::span(all)), ReduceOp::kSum, {});
    std::vector<float> gathered(all.size());
    ranks.all_gather(view(std::span(gathered)), view(std::span(part)), {});
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], 6 * value(i)) << i;
    EXPECT_EQ(gathered, all);

    std::vector<float> exchanged(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = rank * value(i);
    ranks.all_to_all(view(std::span(exchanged)), view(std::span(all)), {});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(ranks.rank()) * kPart + i % kPart;
      ASSERT_EQ(exchanged[i], static_cast<float>(i / kPart) * value(at)) << i;
    }
    ranks.broadcast(view(std::span(all)), 2, {});
    if (ranks.rank() == 0) ranks.send(view(std::span(all)), 1, {});
    std::vector<float> received = all;
    if (ranks.rank() == 1) {
      received.assign(all.size(), 0);
      ranks.recv(view(std::span(received)), 0, {});
    }
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(received[i], 2 * value(i)) << i;
  });
}

// Trains with everything that a training uses of communicators of host memory, at once.
TEST(HostOverDevicesTraining, HasTheBitsOfThreads) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  options.zero_stage = 2;
  const MeshShape shape = {.data = 2, .pipeline = 2};
  const RankedRun expected = train_ranks(options, shape, options.zero_stage);
  std::vector<Curve> curves(expected.curves.size());
  FakeGpuRunner(shape.ranks()).run({}, [&](Communicator& ranks) {
    as_rank(ranks, options, shape, [&](const ModelRuntimeOptions& own) {
      curves.at(static_cast<std::size_t>(ranks.rank())) = train_tiny(own, kSteps).curve;
    });
  });
  EXPECT_EQ(curves, expected.curves);
}

}  // namespace
}  // namespace terrace
