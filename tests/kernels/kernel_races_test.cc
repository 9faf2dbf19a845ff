#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "optim/rules/rules.h"
#include "optim/shared/update_kernels.h"
#include "optim/update_rules.h"
#include "tests/kernels/fiber_block.h"
#include "tests/kernels/fiber_kernels.h"
#include "tests/kernels/op_case.h"
#include "tests/kernels/shared_kernels.h"
#include "tests/optim/narrow_training.h"
#include "tests/optim/rule_state.h"
#include "tests/sanitized.h"

// The kernels of the GPU with real threads (fiber_block.h). Under ThreadSanitizer no thread may use
// memory that another has not handed over by a sync(). In every build threads meet where they have
// to, and give the same bits as when they run one after the other.
namespace terrace::test {
namespace {

// Each of these cases takes seconds under ThreadSanitizer, and its threads do nothing that the
// threads of other cases do not do.
constexpr std::string_view kSlow[] = {"R=2200", "R=750", "R=4133", "C=5000", "C=16400", "C=32768"};

bool is_slow(const OpCase& op_case) {
  return std::ranges::any_of(
      kSlow, [&](std::string_view name) { return op_case.name.find(name) != op_case.name.npos; });
}

class KernelRaces : public testing::TestWithParam<DType> {
 protected:
  static void expect_none(const std::vector<OpCase>& cases) {
    int looked_at = 0;
    for (const OpCase& op_case : cases) {
      if (is_slow(op_case)) continue;
      ++looked_at;
      const RunOptions options{.on_boundary = true};
      expect_same_bits(run_case(fiber_kernels(), op_case, false, options),
                       run_case(shared_kernels(), op_case, false, options), op_case.name);
    }
    EXPECT_GE(looked_at, 4);
  }
};

TEST_P(KernelRaces, Matmul) { expect_none(matmul_cases(GetParam())); }
TEST_P(KernelRaces, Norm) { expect_none(norm_cases(GetParam())); }
TEST_P(KernelRaces, Rope) { expect_none(rope_cases(GetParam())); }
TEST_P(KernelRaces, Activation) { expect_none(activation_cases(GetParam())); }
TEST_P(KernelRaces, Elementwise) { expect_none(elementwise_cases(GetParam())); }
TEST_P(KernelRaces, Wire) { expect_none(wire_cases(GetParam())); }
TEST_P(KernelRaces, Embedding) { expect_none(embedding_cases(GetParam())); }
TEST_P(KernelRaces, HeadLoss) { expect_none(head_loss_cases(GetParam())); }
TEST_P(KernelRaces, Attention) { expect_none(attention_cases(GetParam())); }
TEST_P(KernelRaces, HeadPart) { expect_none(head_part_cases(GetParam())); }
TEST_P(KernelRaces, Experts) { expect_none(expert_cases(GetParam())); }

// In fp16 threads do the same as in bf16.
INSTANTIATE_TEST_SUITE_P(ComputeTypes, KernelRaces,
                         testing::ValuesIn(fewer_if_sanitized<DType>({DType::kF32, DType::kBF16},
                                                                     {DType::kBF16})),
                         [](const auto& param) { return std::string(name_of(param.param)); });

void update_with_fibers(const UpdateRule& rule, const ParameterUpdate& update) {
  FiberLauncher launcher;
  ASSERT_TRUE(with_type_of(rule, [&]<typename Rule>() { shared::update<Rule>(launcher, update); }));
}

class UpdateRaces : public testing::TestWithParam<std::tuple<const UpdateRule*, Form>> {};

TEST_P(UpdateRaces, None) {
  constexpr std::int64_t kElements = 2 * 4096;
  const auto& [rule, form] = GetParam();
  Training expected(*rule, form, kElements);
  Training training(*rule, form, kElements);
  for (std::uint32_t step = 1; step <= 2; ++step) {
    rule->reference(expected.step(step));
    update_with_fibers(*rule, training.step(step));
  }
  EXPECT_EQ(training.parameter, expected.parameter);
  EXPECT_EQ(training.state, expected.state);
}

INSTANTIATE_TEST_SUITE_P(RulesAndForms, UpdateRaces,
                         testing::Combine(testing::ValuesIn(update_rules_for_trainers()),
                                          testing::ValuesIn(kForms)),
                         RuleAndFormName());

TEST(UpdateRacesTest, NoneWithSlotsInFp32) {
  for (const UpdateRule* rule : update_rules_for_trainers()) {
    for (const ParameterKind kind : {ParameterKind::kSplit, ParameterKind::kBf16}) {
      const StepScalars scalars = second_scalars(*rule);
      UpdateState expected(*rule, 5000, 0, kind);
      UpdateState state(*rule, 5000, 0, kind);
      fill_state(expected, 3);
      fill_state(state, 3);
      rule->reference(expected.update(scalars));
      update_with_fibers(*rule, state.update(scalars));
      expect_same_bits(state, expected);
    }
  }
}

// Kernels with one mistake each, which must be found.
constexpr int kThreads = 64;
using Floats = std::vector<float>;

// Every thread reads its neighbour's number from shared memory.
struct NeighbourKernel {
  float* out = nullptr;
  bool syncs = true;

  template <typename Block>
  void operator()(Block& block) const {
    auto* const numbers = reinterpret_cast<float*>(block.shared_memory());
    block.for_each_thread([&](int t) { numbers[t] = static_cast<float>(t); });
    if (syncs) block.sync();
    block.for_each_thread(
        [&](int t) { out[block.index() * kThreads + t] = numbers[(t + 1) % kThreads]; });
  }
};

// The threads of a warp also exchange registers in a sum, which does not order their accesses to
// shared memory.
struct WarpSumKernel {
  float* out = nullptr;
  bool syncs = true;

  template <typename Block>
  void operator()(Block& block) const {
    auto* const numbers = reinterpret_cast<float*>(block.shared_memory());
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) { sums[t] = numbers[t] = static_cast<float>(t); });
    if (syncs) block.sync();
    block.warp_sum(sums);
    block.for_each_thread([&](int t) { out[t] = sums[t] + numbers[t ^ 1]; });
  }
};

// All blocks write the same number to the same place.
struct SamePlaceKernel {
  float* out = nullptr;
  bool everywhere = false;

  template <typename Block>
  void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      if (t == 0) out[everywhere ? block.index() : 0] = 1;
    });
  }
};

struct CopyKernel {
  const float* in = nullptr;
  float* out = nullptr;
  bool awaits = true;

  template <typename Block>
  void operator()(Block& block) const {
    auto* const numbers = reinterpret_cast<float*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      block.template copy_async<sizeof(float)>(numbers + t, in + t, sizeof(float));
    });
    if (awaits) block.await_copies();
    block.for_each_thread([&](int t) { out[t] = numbers[t]; });
    block.await_copies();
  }
};

// Half of the threads do not come to where the others wait.
struct HalfKernel {
  template <typename Block>
  void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      if (t < kThreads / 2) block.sync();
    });
  }
};

// Threads of one warp wait for different things.
struct SplitWarpKernel {
  template <typename Block>
  void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      typename Block::template PerThread<float> value;
      value[t] = 1;
      if (t % 2 == 0) {
        block.warp_sum(value);
      } else {
        block.sync();
      }
    });
  }
};

template <typename Kernel>
void launch(const Kernel& kernel, std::int64_t blocks = 1) {
  FiberLauncher().launch<kThreads>("planted", kernel, blocks, kThreads * sizeof(float));
}

// In a build without ThreadSanitizer only the kernels in which it must find no race are checked.
template <typename Kernel>
void expect_race(const Kernel& kernel, std::int64_t blocks = 1) {
#ifdef __SANITIZE_THREAD__
  const auto launch_and_end = [&] {
    launch(kernel, blocks);
    std::exit(0);
  };
  EXPECT_EXIT(launch_and_end(), testing::ExitedWithCode(66), "data race");
#else
  launch(kernel, blocks);
#endif
}

TEST(KernelRacesTest, AMissingBarrierIsFound) {
  Floats out(3 * kThreads);
  launch(NeighbourKernel{.out = out.data()}, 3);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], (i + 1) % kThreads);
  expect_race(NeighbourKernel{.out = out.data(), .syncs = false});
}

TEST(KernelRacesTest, RegistersThatAreExchangedAreNoBarrier) {
  Floats out(kThreads);
  launch(WarpSumKernel{.out = out.data()});
  EXPECT_EQ(out[0], 31 * 16 + 1);
  EXPECT_EQ(out[63], 31 * 16 + 32 * 32 + 62);
  expect_race(WarpSumKernel{.out = out.data(), .syncs = false});
}

TEST(KernelRacesTest, BlocksThatWriteToOnePlaceAreFound) {
  Floats out(8);
  launch(SamePlaceKernel{.out = out.data(), .everywhere = true}, 8);
  EXPECT_EQ(std::ranges::count(out, 1.0F), 8);
  launch(SamePlaceKernel{.out = out.data()});
  launch(SamePlaceKernel{.out = out.data()});  // one launch ends before the next begins
  expect_race(SamePlaceKernel{.out = out.data()}, 2);
}

TEST(KernelRacesTest, ACopyThatIsNotAwaitedHasNotCome) {
  Floats in(kThreads, 3);
  Floats out(kThreads);
  launch(CopyKernel{.in = in.data(), .out = out.data(), .awaits = false});
  EXPECT_TRUE(std::ranges::all_of(out, [](float value) { return value != value; }));
  launch(CopyKernel{.in = in.data(), .out = out.data()});
  EXPECT_EQ(out, in);
}

TEST(KernelRacesTest, ThreadsThatCannotMeetAreNamed) {
  // Runs in a new process: ThreadSanitizer would report races between these fibers and the fibers
  // of earlier tests, which a fork has too.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      launch(HalfKernel()),
      "block 0: .* thread 0 waits for sync\\(\\), thread 32 waits for nothing: it has ended\n");
  EXPECT_DEATH(launch(SplitWarpKernel()),
               "thread 0 waits for warp_sum\\(\\), thread 1 waits for sync\\(\\)");
}

}  // namespace
}  // namespace terrace::test
