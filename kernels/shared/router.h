#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"
#include "kernels/shared/row_logits.h"

// The ops of a router's losses besides the gradient of its logits (experts.h).
namespace terrace::shared {

// A thread finds the softmax of a row over all experts.
template <typename T>
struct RowSoftmaxBody {
  const T* logits;
  RowProbabilities* softmax;  // [R]
  std::int64_t E;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t r, int) const {
    softmax[r] = RowProbabilities::of_all(RowLogits<T>{logits + r * E, E});
  }
};

// A block writes the sums of an expert: how often it is chosen, and its probabilities. One block
// more writes the two last sums. Each thread adds some rows in order, then block.sum() adds the
// threads' sums.
template <typename T>
struct RouterSumsKernel {
  const T* logits;
  const std::int32_t* index;
  const std::int32_t* targets;  // null: all rows count
  const RowProbabilities* softmax;
  double* sums;
  std::int64_t R, E, k;

  static constexpr int kThreads = 256;

  struct Pair {
    double count, value;
  };

  TERRACE_KERNEL Pair of_expert(std::int64_t e, std::int64_t r) const {
    double count = 0;
    for (std::int64_t j = 0; j < k; ++j) count += index[r * k + j] == e ? 1 : 0;
    return {count, softmax[r].at(widened(logits[r * E + e]))};
  }
  TERRACE_KERNEL Pair of_row(std::int64_t r) const {
    const double log_sum = softmax[r].log_sum();
    return {1, log_sum * log_sum};
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t e = block.index();
    typename Block::template PerThread<double> counts;
    typename Block::template PerThread<double> values;
    block.for_each_thread([&](int t) {
      Pair sum{0, 0};
      for (std::int64_t r = t; r < R; r += kThreads) {
        if (targets != nullptr && targets[r] == kPaddingTarget) continue;
        const Pair pair = e < E ? of_expert(e, r) : of_row(r);
        sum.count += pair.count;
        sum.value += pair.value;
      }
      counts[t] = sum.count;
      values[t] = sum.value;
    });
    const double count = block.sum(counts);
    const double value = block.sum(values);
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      sums[e < E ? e : 2 * E + 1] = count;
      sums[E + e] = value;
    });
  }
};

inline std::size_t router_sums_workspace(const RouterSums& op, int /*workers*/) {
  const auto R = static_cast<std::size_t>(op.logits.shape[0]);
  return WorkspaceCutter::padded_bytes(R * sizeof(RowProbabilities));
}

template <typename Launcher>
void router_sums(Launcher& launcher, const RouterSums& op) {
  const std::int64_t R = op.logits.shape[0];
  const std::int64_t E = op.logits.elements() / R;
  TERRACE_CHECK_EQ(op.sums.elements(), router_sums_of(E));
  auto* const softmax = WorkspaceCutter(launcher.workspace()).take<RowProbabilities>(R);
  with_compute_type(op.logits.dtype, [&]<typename T>(std::type_identity<T>) {
    launch_map<1>(launcher, "router_sums", 1, R, RowSoftmaxBody<T>{op.logits.as<T>(), softmax, E});
    using Kernel = RouterSumsKernel<T>;
    const Kernel kernel{op.logits.as<T>(),
                        op.index.as<std::int32_t>(),
                        op.targets.empty() ? nullptr : op.targets.as<std::int32_t>(),
                        softmax,
                        op.sums.as<double>(),
                        R,
                        E,
                        op.index.elements() / R};
    launcher.template launch<Kernel::kThreads>("router_sums", kernel, E + 1);
  });
}

// A thread computes a slope.
struct RouterSlopesBody {
  const double* sums;
  float* slopes;
  std::int64_t E, n, layers;
  double balance, z;

  TERRACE_KERNEL double total(std::int64_t number) const {
    double sum = 0;
    for (std::int64_t layer = 0; layer < n; ++layer) sum += sums[layer * (2 * E + 2) + number];
    return sum;
  }

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t e, int) const {
    const double rows = total(2 * E + 1);
    double slope = 0;
    if (rows > 0 && e < E) slope = balance * static_cast<double>(E) * (total(e) / rows) / rows;
    if (rows > 0 && e == E) slope = 2 * z / (static_cast<double>(layers) * sums[2 * E + 1]);
    slopes[e] = static_cast<float>(slope);
  }
};

template <typename Launcher>
void router_slopes(Launcher& launcher, const RouterSlopes& op) {
  const std::int64_t E = op.slopes.elements() - 1;
  const std::int64_t n = op.sums.elements() / router_sums_of(E);
  TERRACE_CHECK_EQ(op.sums.elements(), n * router_sums_of(E));
  const RouterSlopesBody body{
      op.sums.as<double>(), op.slopes.as<float>(), E, n, op.layers, op.balance, op.z};
  launch_map<1>(launcher, "router_slopes", 1, E + 1, body);
}

}  // namespace terrace::shared
