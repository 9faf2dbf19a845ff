#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernels/cuda/cuda_rank_sum.h"
#include "memory/cuda/cuda_device.h"
#include "parallel/rank_order.h"
#include "tests/gpu/gpu_presence.h"
#include "tests/gpu/take_stream.h"

// Compares the sums that ranks on GPUs compute by themselves (parallel/rank_order_sums.h) with the
// host's sums. rank_order_sums_test.cc tests that rows are packed, exchanged and gathered as they
// should be.
namespace terrace {
namespace {

class GpuRankSum : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
    device_ = make_cuda_device({.ordinal = 0, .capacity_bytes = std::size_t{1} << 22});
    stream_ = device_->create_stream("sums");
    stream_->run(take_);
  }

  std::vector<std::uint16_t> random_numbers(std::size_t count) {
    std::uniform_real_distribution<float> uniform(-500, 500);
    std::vector<std::uint16_t> numbers(count);
    for (std::uint16_t& bits : numbers) {
      const float value = uniform(random_);
      bits = GetParam() == DType::kBF16 ? to_bf16_nearest_even(value).bits
                                        : to_fp16_nearest_even(value).bits;
    }
    return numbers;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  test::TakeStream take_;
  std::mt19937 random_{1};
};

TEST_P(GpuRankSum, HasTheBitsOfTheHost) {
  for (const int ranks : {3, 8}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{65536}}) {
      const std::vector<std::uint16_t> parts =
          random_numbers(static_cast<std::size_t>(ranks) * count);
      std::vector<std::uint16_t> expected(count);
      std::byte* const target = reinterpret_cast<std::byte*>(expected.data());
      std::vector<const std::byte*> sources;
      for (int rank = 0; rank < ranks; ++rank) {
        sources.push_back(reinterpret_cast<const std::byte*>(parts.data()) +
                          static_cast<std::size_t>(rank) * count * sizeof(std::uint16_t));
      }
      reduce_in_rank_order(std::span(&target, 1), sources, count, GetParam(), ReduceOp::kSum);

      const std::span<const std::byte> given = std::as_bytes(std::span(parts));
      const auto memory = device_->allocate(given.size());
      const auto sum = device_->allocate(expected.size() * sizeof(std::uint16_t));
      stream_->copy(memory->bytes(), given);
      cuda_add_ranks(view(sum->bytes().data(), GetParam(), static_cast<std::int64_t>(count)),
                     memory->bytes().data(), ranks, take_.native);
      std::vector<std::uint16_t> sums(count);
      stream_->copy(std::as_writable_bytes(std::span(sums)), sum->bytes());
      stream_->synchronize();
      EXPECT_EQ(sums, expected) << ranks << " ranks, " << count << " numbers";
    }
  }
}

TEST_P(GpuRankSum, RowsArePacked) {
  constexpr std::size_t kRows = 3;
  constexpr std::size_t kStride = 1000;
  constexpr std::size_t kRow = 77;
  const std::vector<std::uint16_t> numbers = random_numbers(kRows * kStride);
  const auto memory = device_->allocate(numbers.size() * sizeof(std::uint16_t));
  const auto packed = device_->allocate(kRows * kRow * sizeof(std::uint16_t));
  stream_->copy(memory->bytes(), std::as_bytes(std::span(numbers)));
  cuda_pack_rows(packed->bytes().data(),
                 {.data = memory->bytes().data(),
                  .dtype = DType::kBF16,
                  .rows = kRows,
                  .width = kRow,
                  .stride = kStride},
                 take_.native);
  std::vector<std::uint16_t> rows(kRows * kRow);
  stream_->copy(std::as_writable_bytes(std::span(rows)), packed->bytes());
  stream_->synchronize();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i], numbers[i / kRow * kStride + i % kRow]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuRankSum, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace
