#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/op_case.h"
#include "tests/kernels/shared_kernels.h"

// Tests that the cases of attention's options fail for a kernel that ignores an option, and that
// keys which no query of a tile sees are not read.
namespace terrace::test {
namespace {

Values values_of(const std::vector<HostTensor>& tensors) {
  Values values;
  for (const HostTensor& tensor : tensors) values.push_back(tensor.values());
  return values;
}

bool is_within(const Values& got, const Values& want, const Values& bounds) {
  for (std::size_t k = 0; k < want.size(); ++k) {
    for (std::size_t i = 0; i < want[k].size(); ++i) {
      if (!(std::abs(got[k][i] - want[k][i]) <= bounds[k][i])) return false;
    }
  }
  return true;
}

class AttentionOptions : public testing::TestWithParam<DType> {};

TEST_P(AttentionOptions, AreSeenToBeIgnored) {
  const auto options = ignored_attention_options(GetParam());
  EXPECT_GE(options.size(), 18U);
  for (const IgnoredOption& option : options) {
    SCOPED_TRACE(option.given.name + " without " + option.option);
    std::vector<HostTensor> inputs;
    for (const HostTensor& input : option.given.inputs) inputs.push_back(input.widened());
    const Values want = values_of(run_case(reference_kernels(), option.given, true, {}));
    const Values bounds = option.given.bounds(values_of(inputs), want);
    EXPECT_TRUE(
        is_within(values_of(run_case(reference_kernels(), option.given, false, {})), want, bounds));
    EXPECT_FALSE(is_within(values_of(run_case(reference_kernels(), option.ignored, false, {})),
                           want, bounds));
  }
}

// One head whose early keys and values are NaNs: a product with them, even by 0, is NaN too.
struct NanKeys {
  static constexpr std::int64_t kRows = 700, kWidth = 32, kNans = 400;
  // For queries from row kFirstClean on, no kernel has NaNs in a tile with keys that the query
  // sees.
  static constexpr std::int64_t kSeen = 40, kFirstClean = 640;

  NanKeys() {
    const std::int64_t columns = 3 * kWidth;
    for (std::int64_t i = 0; i < kNans * columns; ++i) {
      if (i % columns >= kWidth) qkv.set(i, std::numeric_limits<double>::quiet_NaN());
    }
    for (std::int64_t row = 0; row < kRows; ++row) {
      first_keys.set(row, static_cast<double>(row - row % kSeen));
    }
  }

  void run(const KernelTable& table, const AttentionRule& rule) {
    WorkerArena workers(1);
    KernelContext context;
    context.workers = &workers;
    const AttentionShape shape = {1, kRows, kRows, 1, 1, kWidth};
    const auto columns = [](const HostTensor& matrix, std::int64_t part) {
      return columns_of(matrix.view(), part * kWidth, kWidth);
    };
    const AttentionForward forward = {shape,           rule,       columns(qkv, 0), columns(qkv, 1),
                                      columns(qkv, 2), out.view(), sums.view()};
    const AttentionBackward backward = {
        shape,       rule,        columns(qkv, 0),  columns(qkv, 1),  columns(qkv, 2), out.view(),
        sums.view(), dout.view(), columns(dqkv, 0), columns(dqkv, 1), columns(dqkv, 2)};
    const HostTensor workspace =
        HostTensor(DType::kF64, shape_of(table.attention_forward_workspace(forward, 1) +
                                         table.attention_backward_workspace(backward, 1)))
            .on_boundary();
    context.workspace = {workspace.view().data, workspace.view().size_bytes()};
    table.attention_forward(context, forward);
    table.attention_backward(context, backward);
  }
  static Shape shape_of(std::size_t bytes) {
    return shape(static_cast<std::int64_t>(bytes / sizeof(double)) + 64);
  }
  static bool is_clean(const HostTensor& rows) {
    const std::int64_t columns = rows.elements() / kRows;
    for (std::int64_t i = kFirstClean * columns; i < rows.elements(); ++i) {
      if (std::isnan(rows.at(i))) return false;
    }
    return true;
  }

  Random random = Random(7);
  HostTensor qkv = HostTensor::random(DType::kF32, shape(kRows, 3 * kWidth), random);
  HostTensor dout = HostTensor::random(DType::kF32, shape(kRows, kWidth), random);
  HostTensor out = HostTensor(DType::kF32, shape(kRows, kWidth));
  HostTensor sums = HostTensor(DType::kF32, shape(1, 1, kRows));
  HostTensor dqkv = HostTensor(DType::kF32, shape(kRows, 3 * kWidth));
  HostTensor first_keys = HostTensor(DType::kI32, shape(1, kRows));
};

TEST(AttentionTilesTest, ThatNoQuerySeesAreNotLookedAt) {
  for (const KernelTable* table : {&cpu_kernels(), &shared_kernels()}) {
    SCOPED_TRACE(std::string(table->name));
    NanKeys window;
    window.run(*table, {.window = NanKeys::kSeen});
    EXPECT_TRUE(NanKeys::is_clean(window.out));
    EXPECT_TRUE(NanKeys::is_clean(window.dqkv));
    NanKeys documents;
    documents.run(*table, {.first_keys = documents.first_keys.view()});
    EXPECT_TRUE(NanKeys::is_clean(documents.out));
    EXPECT_TRUE(NanKeys::is_clean(documents.dqkv));
    NanKeys all;
    all.run(*table, {});
    EXPECT_FALSE(NanKeys::is_clean(all.out));
  }
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, AttentionOptions,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace terrace::test
