#pragma once

#include <math.h>

#include <algorithm>
#include <cstdint>

#include "kernels/head_products.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/head_loss.h"

// The head of a part of the vocabulary: the numbers of each row that the parts must exchange, and
// the loss and gradients that follow from them. Chunks of rows and products are as in head_loss.h.
namespace terrace::shared {

// The kernel for the LogitSums of rows: one block for each row.
template <bool Mapped>
struct RowSumsKernel {
  float* logits;               // [chunk, columns]
  const std::int32_t* target;  // of the chunk
  float* sums;                 // of the chunk, LogitSums each
  std::int64_t V, columns, first_token;
  LogitMap map;

  static constexpr int kThreads = 512;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    float* const row = logits + block.index() * columns;
    float* const out = sums + block.index() * kLogitSums;
    const std::int64_t at = target[block.index()] - first_token;
    if (target[block.index()] < 0) {
      block.for_each_thread([&](int t) {
        if (t < kLogitSums) out[t] = 0.0F;
      });
      return;
    }
    const RowExponentials exponentials = exponentials_of<kThreads, Mapped>(block, row, V, map);
    block.for_each_thread([&](int t) {
      if (t != 0) return;
      out[0] = exponentials.max;
      out[1] = exponentials.sum;
      out[2] = at >= 0 && at < V ? row[at] : 0.0F;
    });
  }
};

TERRACE_KERNEL inline float exponential(float x) { return ::expf(x); }
TERRACE_KERNEL inline double exponential(double x) { return ::exp(x); }

// The sums of all parts for a row, joined in the order of the parts.
template <typename Real>
struct WholeRow {
  Real max, sum, target;

  TERRACE_KERNEL static WholeRow of(const float* sums, std::int64_t rows, std::int64_t parts,
                                    std::int64_t row) {
    const auto part = [&](std::int64_t p) { return sums + (p * rows + row) * kLogitSums; };
    WholeRow whole{part(0)[0], 0, 0};
    for (std::int64_t p = 1; p < parts; ++p) {
      whole.max = whole.max < part(p)[0] ? Real{part(p)[0]} : whole.max;
    }
    for (std::int64_t p = 0; p < parts; ++p) {
      whole.sum += Real{part(p)[1]} * exponential(Real{part(p)[0]} - whole.max);
      whole.target += Real{part(p)[2]};
    }
    return whole;
  }
};

struct WholeLossBody {
  const float* sums;  // [parts, rows, 3]
  const std::int32_t* target;
  double* losses;
  std::int64_t rows, parts;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t row, std::int64_t) const {
    losses[row] = 0;
    if (target[row] < 0) return;
    const auto whole = WholeRow<double>::of(sums, rows, parts, row);
    losses[row] = whole.max - whole.target + ::log(whole.sum);
  }
};

// One block for each row; every thread computes the few sums of the whole row by itself.
template <typename T, bool Mapped>
struct PartGradientKernel {
  const float* logits;         // [chunk, columns]
  const float* sums;           // [parts, rows, 3]
  const std::int32_t* target;  // of all rows
  T* dlogits;                  // [chunk, columns]; may be the logits
  std::int64_t V, columns, rows, parts, first_row, first_token;
  float gradient_scale;
  LogitMap map;

  static constexpr int kThreads = 512;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t row = first_row + block.index();
    const float* const from = logits + block.index() * columns;
    T* const to = dlogits + block.index() * columns;
    const bool is_counted = target[row] >= 0;
    const std::int64_t at = target[row] - first_token;
    const auto whole = WholeRow<float>::of(sums, rows, parts, row);
    block.for_each_thread([&](int t) {
      for (std::int64_t v = t; v < V; v += kThreads) {
        const float logit = Mapped ? map.logit(from[v]) : from[v];
        const float probability = ::expf(logit - whole.max) / whole.sum;
        float gradient = gradient_scale * (v == at ? probability - 1.0F : probability);
        if constexpr (Mapped) gradient *= map.slope(logit);
        to[v] = round_to<T>(is_counted ? gradient : 0.0F);
      }
      for (std::int64_t v = V + t; v < columns; v += kThreads) to[v] = T{};
    });
  }
};

inline std::size_t head_sums_workspace(const HeadSums& op) {
  const HeadLoss products = products_of(op);
  const HeadShape s = head_shape(products);
  const auto logits = static_cast<std::size_t>(s.chunk * s.columns);
  return WorkspaceCutter::padded_bytes(logits * sizeof(float)) + head_weight_workspace(products, s);
}

template <typename Launcher>
void head_sums(Launcher& launcher, const HeadSums& op) {
  const HeadLoss products = products_of(op);
  const HeadShape s = head_shape(products);
  TERRACE_CHECK_EQ(op.target.elements(), s.R);
  TERRACE_CHECK_EQ(op.sums.elements(), s.R * kLogitSums);
  WorkspaceCutter cutter(launcher.workspace());
  float* const logits = cutter.take<float>(s.chunk * s.columns);
  const std::byte* const weight = padded_weight(launcher, cutter, products, s);
  for (std::int64_t first = 0; first < s.R; first += s.chunk) {
    const std::int64_t rows = std::min(s.chunk, s.R - first);
    head_logits(launcher, products, {s, first, rows}, weight, logits);
    const LogitMap map = logit_map(op);
    with_mapping(map, [&]<bool Mapped>(std::bool_constant<Mapped>) {
      using Kernel = RowSumsKernel<Mapped>;
      const Kernel kernel{logits,
                          op.target.as<std::int32_t>() + first,
                          op.sums.as<float>() + first * kLogitSums,
                          s.V,
                          s.columns,
                          op.first_token,
                          map};
      launcher.template launch<Kernel::kThreads>("head_sums", kernel, rows);
    });
  }
}

inline std::size_t head_part_loss_workspace(const HeadPartLoss& op) {
  if (!op.dh.empty()) return head_loss_workspace(products_of(op));
  const auto rows = static_cast<std::size_t>(op.target.elements());
  return WorkspaceCutter::padded_bytes(rows * sizeof(double));
}

// A chunk of rows, whose logits are in `space`.
struct PartChunk {
  const HeadShape& s;
  const HeadWorkspace& space;
  std::int64_t parts, first;
};

template <typename Launcher>
void part_dlogits(Launcher& launcher, const HeadPartLoss& op, const PartChunk& chunk) {
  const LogitMap map = logit_map(op);
  with_compute_type(op.h.dtype, [&]<typename T>(std::type_identity<T>) {
    with_mapping(map, [&]<bool Mapped>(std::bool_constant<Mapped>) {
      using Kernel = PartGradientKernel<T, Mapped>;
      const Kernel kernel{chunk.space.logits,
                          op.sums.as<float>(),
                          op.target.as<std::int32_t>(),
                          reinterpret_cast<T*>(chunk.space.dlogits),
                          chunk.s.V,
                          chunk.s.columns,
                          chunk.s.R,
                          chunk.parts,
                          chunk.first,
                          op.first_token,
                          op.gradient_scale,
                          map};
      launcher.template launch<Kernel::kThreads>("head_part_loss", kernel,
                                                 std::min(chunk.s.chunk, chunk.s.R - chunk.first));
    });
  });
}

template <typename Launcher>
void part_gradients(Launcher& launcher, const HeadPartLoss& op, std::int64_t parts) {
  const HeadLoss products = products_of(op);
  const HeadShape s = head_shape(products);
  TERRACE_CHECK_EQ(op.target.elements(), s.R);
  const HeadWorkspace space = cut_head_workspace(launcher, products, s);
  for (std::int64_t first = 0; first < s.R; first += s.chunk) {
    const std::int64_t rows = std::min(s.chunk, s.R - first);
    const HeadChunk chunk = {s, first, rows};
    head_logits(launcher, products, chunk, space.weight, space.logits);
    part_dlogits(launcher, op, {s, space, parts, first});
    head_gradients(launcher, products, chunk, space);
  }
  finish_head_gradient(launcher, products, s, space);
}

// The rows' losses come first in workspace, whether there are gradients (cut_head_workspace) or
// not.
template <typename Launcher>
void head_part_loss(Launcher& launcher, const HeadPartLoss& op) {
  TERRACE_CHECK(op.dweight.empty() || !op.dh.empty());
  const std::int64_t R = op.target.elements();
  const std::int64_t parts = op.sums.elements() / (R * kLogitSums);
  double* const losses = WorkspaceCutter(launcher.workspace()).take<double>(R);
  const WholeLossBody body{op.sums.as<float>(), op.target.as<std::int32_t>(), losses, R, parts};
  launch_map<1>(launcher, "head_part_loss", 1, R, body);
  launch_tree_sum(launcher, losses, op.loss_sum, R);
  if (!op.dh.empty()) part_gradients(launcher, op, parts);
}

}  // namespace terrace::shared
