#include "parallel/rank_order_sums.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "kernels/shared/rank_sum.h"
#include "memory/host/worker_arena.h"
#include "parallel/thread_communicator.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/kernels/host_block.h"
#include "tests/sanitized.h"

// Tests narrow sums over ranks whose communicators cannot add them, with the kernel of GPUs on the
// host.
namespace terrace {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// Small, so that most sums take several pieces.
constexpr std::size_t kPieceBytes = 1024;

// Does not add bf16 and fp16 over more than two ranks: NCCL's communicators must not be asked to,
// either.
class CoarseCommunicator final : public Communicator {
 public:
  explicit CoarseCommunicator(std::unique_ptr<Communicator> threads)
      : Communicator(threads->name(), threads->rank(), threads->size()),
        threads_(std::move(threads)) {}

  void abort(const std::string& reason) override { threads_->abort(reason); }
  std::optional<std::string> abort_reason() override { return threads_->abort_reason(); }

 private:
  void run(const CollectiveCall& call, NativeStream stream) override {
    const bool adds = call.op == ReduceOp::kSum && (call.kind == CollectiveKind::kAllReduce ||
                                                    call.kind == CollectiveKind::kReduceScatter);
    const bool narrow = call.dtype == DType::kBF16 || call.dtype == DType::kF16;
    TERRACE_CHECK(!adds || !narrow || size() <= 2);
    repeat_call(call, *threads_, stream);
  }
  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    return std::make_unique<CoarseCommunicator>(threads_->split(color, key, name));
  }

  const std::unique_ptr<Communicator> threads_;
};

class HostPiece final : public DeviceMemory {
 public:
  explicit HostPiece(std::size_t size_bytes) : bytes_(size_bytes) {}
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  mutable std::vector<std::byte> bytes_;
};

class HostArithmetic final : public DeviceArithmetic {
 public:
  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return std::make_unique<HostPiece>(size_bytes);
  }
  void add_ranks(const TensorView& sum, const std::byte* parts, int ranks,
                 NativeStream /*stream*/) override {
    test::HostLauncher launcher(workers_, {});
    shared::add_ranks(launcher, sum, parts, ranks);
  }
  void pack_rows(std::byte* target, const StridedRows& source, NativeStream /*stream*/) override {
    const std::size_t row_bytes = static_cast<std::size_t>(source.width) * size_of(source.dtype);
    const std::size_t pitch = static_cast<std::size_t>(source.stride) * size_of(source.dtype);
    for (std::size_t row = 0; row < static_cast<std::size_t>(source.rows); ++row) {
      std::memcpy(target + row * row_bytes, source.data + row * pitch, row_bytes);
    }
  }

 private:
  WorkerArena workers_{1};
};

Communicators coarse_with_sums(int ranks, const CommunicatorOptions& options) {
  Communicators communicators = make_thread_communicators(ranks, "world", options);
  for (auto& communicator : communicators) {
    communicator =
        make_rank_order_sums(std::make_unique<CoarseCommunicator>(std::move(communicator)),
                             std::make_shared<HostArithmetic>(), kPieceBytes);
  }
  return communicators;
}

void run_ranks(Communicators communicators, const std::function<void(Communicator&)>& body) {
  std::vector<std::jthread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&body, own = std::move(communicator)] { body(*own); });
  }
}

class CoarseRunner final : public RankRunner {
 public:
  explicit CoarseRunner(int ranks) : ranks_(ranks), meeting_(ranks) {}

  void run(const CommunicatorOptions& options,
           const std::function<void(Communicator&)>& body) override {
    run_ranks(coarse_with_sums(ranks_, options), body);
  }
  void meet() override { meeting_.arrive_and_wait(); }

 private:
  const int ranks_;
  std::barrier<> meeting_;
};

std::unique_ptr<RankRunner> coarse(int ranks) { return std::make_unique<CoarseRunner>(ranks); }

INSTANTIATE_TEST_SUITE_P(RankOrderSums, CommunicatorConformanceTest,
                         testing::ValuesIn(fewer_if_sanitized<CommunicatorFactory>(
                             {{"1_coarse", 1, coarse},
                              {"2_coarse", 2, coarse},
                              {"3_coarse", 3, coarse},
                              {"4_coarse", 4, coarse},
                              {"many_coarse", kManyRanks, coarse}},
                             {{"2_coarse", 2, coarse}, {"3_coarse", 3, coarse}})),
                         [](const auto& info) { return info.param.name; });

// The results of each rank after sums of `part` numbers per rank: an all_reduce of all numbers, a
// reduce_scatter of all numbers, and a reduce_scatter of all into a part of the source.
using Bits = std::vector<std::vector<std::uint16_t>>;

Bits sums_of(Communicators communicators, DType dtype, std::int64_t part) {
  const auto ranks = static_cast<std::int64_t>(communicators.size());
  Bits results(communicators.size());
  run_ranks(std::move(communicators), [&](Communicator& own) {
    std::mt19937 random(static_cast<unsigned>(own.rank()));
    std::uniform_real_distribution<float> uniform(-8, 8);
    std::vector<std::uint16_t> data(static_cast<std::size_t>(ranks * part + 1));
    for (std::uint16_t& bits : data) {
      const float value = uniform(random) * (random() % 8 == 0 ? 500.0F : 1.0F);
      bits = dtype == DType::kBF16 ? to_bf16_nearest_even(value).bits
                                   : to_fp16_nearest_even(value).bits;
    }
    const auto all_of = [&](std::vector<std::uint16_t>& numbers, std::int64_t begin,
                            std::int64_t count) {
      return view(reinterpret_cast<std::byte*>(numbers.data() + begin), dtype, count);
    };
    std::vector<std::uint16_t> reduced = data;
    own.all_reduce(all_of(reduced, 0, ranks * part + 1), ReduceOp::kSum, {});
    std::vector<std::uint16_t> scattered(static_cast<std::size_t>(part));
    own.reduce_scatter(all_of(scattered, 0, part), all_of(data, 0, ranks * part), ReduceOp::kSum,
                       {});
    const std::int64_t begin = own.rank() * part;
    own.reduce_scatter(all_of(data, begin, part), all_of(data, 0, ranks * part), ReduceOp::kSum,
                       {});
    std::vector<std::uint16_t>& mine = results[static_cast<std::size_t>(own.rank())];
    mine = reduced;
    mine.insert(mine.end(), scattered.begin(), scattered.end());
    mine.insert(mine.end(), data.begin() + begin, data.begin() + begin + part);
  });
  return results;
}

// The cases have fewer numbers than ranks, less than a piece, and several pieces of which the last
// is not whole.
TEST(RankOrderSums, HaveTheBitsOfThreads) {
  for (const int ranks : {3, 4, 7}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const std::int64_t part : {0, 1, 5, 64, 77, 500, 1003}) {
        EXPECT_EQ(sums_of(coarse_with_sums(ranks, {}), dtype, part),
                  sums_of(make_thread_communicators(ranks, "world", {}), dtype, part))
            << ranks << " ranks, " << name_of(dtype) << ", parts of " << part;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
