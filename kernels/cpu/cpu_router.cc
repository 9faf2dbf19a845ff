#include "kernels/cpu/cpu_router.h"

#include <algorithm>

#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/cpu/row_softmax.h"

namespace terrace {
namespace {

// Rows that a task sums.
constexpr std::int64_t kSumRows = 128;

// Writes the sums of the rows [begin, end).
template <typename T>
void sum_rows(const RouterSums& op, std::int64_t begin, std::int64_t end, double* sums) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  const std::int64_t k = op.index.elements() / R;
  std::fill_n(sums, router_sums_of(E), 0.0);
  for (std::int64_t r = begin; r < end; ++r) {
    if (!counts_in_router(op.targets, r)) continue;
    const RowSoftmax<T> softmax(op.logits.as<const T>() + r * E, E, {}, {.normalizes = false});
    const std::int32_t* const chosen = op.index.as<const std::int32_t>() + r * k;
    for (std::int64_t j = 0; j < k; ++j) sums[chosen[j]] += 1;
    for (std::int64_t e = 0; e < E; ++e) sums[E + e] += softmax.probability(e);
    const double log_sum = softmax.log_sum();
    sums[2 * E] += log_sum * log_sum;
    sums[2 * E + 1] += 1;
  }
}

}  // namespace

// The blocks of rows are summed by themselves, and then added in order.
void cpu_router_sums(const KernelContext& context, const RouterSums& op) {
  TERRACE_CHECK(op.logits.dtype == DType::kF32 || op.logits.dtype == DType::kBF16);
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t count = router_sums_of(op.logits.elements() / R);
  TERRACE_CHECK_EQ(op.sums.elements(), count);
  const std::int64_t blocks = blocks_of(R, kSumRows);
  auto* const parts = region_at<double>(context.workspace, 0, blocks * count);
  for_each_block(context, R, kSumRows, [&](std::int64_t begin, std::int64_t end) {
    double* const part = parts + begin / kSumRows * count;
    if (op.logits.dtype == DType::kF32) return sum_rows<float>(op, begin, end, part);
    sum_rows<Bf16>(op, begin, end, part);
  });
  context.workers->parallel_for(1, [&](std::int64_t, int) {
    auto* const sums = op.sums.as<double>();
    std::fill_n(sums, count, 0.0);
    for (std::int64_t i = 0; i < blocks * count; ++i) sums[i % count] += parts[i];
  });
}

std::size_t cpu_router_sums_workspace(const RouterSums& op, int /*workers*/) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t count = router_sums_of(op.logits.elements() / R);
  WorkspaceLayout layout;
  layout.add(static_cast<std::size_t>(blocks_of(R, kSumRows) * count) * sizeof(double));
  return layout.total_bytes();
}

// Reads few numbers, so one worker does it.
void cpu_router_slopes(const KernelContext& context, const RouterSlopes& op) {
  const std::int64_t E = op.slopes.elements() - 1;
  const std::int64_t stride = router_sums_of(E);
  const std::int64_t layers = op.sums.elements() / stride;
  TERRACE_CHECK_EQ(op.sums.elements(), layers * stride);
  context.workers->parallel_for(1, [&](std::int64_t, int) {
    const auto* const sums = op.sums.as<const double>();
    const auto total = [&](std::int64_t number) {
      double sum = 0;
      for (std::int64_t layer = 0; layer < layers; ++layer) sum += sums[layer * stride + number];
      return sum;
    };
    auto* const slopes = op.slopes.as<float>();
    const double rows = total(2 * E + 1);
    if (!(rows > 0)) return static_cast<void>(std::fill_n(slopes, E + 1, 0.0F));
    for (std::int64_t e = 0; e < E; ++e) {
      const double slope = op.balance * static_cast<double>(E) * (total(e) / rows) / rows;
      slopes[e] = static_cast<float>(slope);
    }
    const double of_layer = sums[2 * E + 1];
    slopes[E] = static_cast<float>(2 * op.z / (static_cast<double>(op.layers) * of_layer));
  });
}

}  // namespace terrace
