#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/head_chunk.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/elementwise.h"
#include "kernels/shared/logit_map.h"

// The language-model head with its loss, in chunks of rows: one product computes the logits of a
// chunk, one pass over each row computes their loss and gradients, and two more products follow.
namespace terrace::shared {

// Returns the rows of a chunk.
inline std::int64_t head_rows(std::int64_t vocabulary) {
  return head_chunk_rows(vocabulary, kGpuHeadLogitsBytes);
}

// Returns the number of columns that the products have. It is the vocabulary if all rows of logits
// then begin and end on boundaries of 16 bytes, as fast products need; otherwise it is the next
// multiple of 64. The added columns are tokens of weight 0: their logits are not read, and their
// gradients are 0 and are dropped.
inline std::int64_t head_columns(std::int64_t vocabulary) {
  return vocabulary % 8 == 0 ? vocabulary : divide_up(vocabulary, 64) * 64;
}

// Returns a logit of a row. Mapped: the memory has products, and a thread replaces them by logits
// when it first reaches them; each thread reaches the same elements every time.
template <bool Mapped, typename F>
TERRACE_KERNEL float map_in_place([[maybe_unused]] F* at, [[maybe_unused]] const LogitMap& map) {
  if constexpr (Mapped) *at = map.logit(*at);
  return *at;
}

// The maximum of a row of logits, and the sum of exp(logit - max) in fp32, added in the tree of
// block.sum().
struct RowExponentials {
  float max, sum;
};

template <int Threads, bool Mapped, typename Block>
TERRACE_KERNEL RowExponentials exponentials_of(Block& block, float* row, std::int64_t V,
                                               const LogitMap& map) {
  typename Block::template PerThread<float> values;
  block.for_each_thread([&](int t) {
    // A thread may not read another thread's elements while a row is mapped.
    float most = Mapped ? -INFINITY : row[0];
    for (std::int64_t v = t; v < V; v += Threads) {
      const float logit = map_in_place<Mapped>(row + v, map);
      most = most < logit ? logit : most;
    }
    values[t] = most;
  });
  const float max = block.max(values);
  block.for_each_thread([&](int t) {
    float sum = 0;
    for (std::int64_t v = t; v < V; v += Threads) sum += ::expf(row[v] - max);
    values[t] = sum;
  });
  return {max, block.sum(values)};
}

// The kernel for the losses and the gradients of logits: one block for each row.
template <typename T, bool Mapped>
struct RowLossKernel {
  float* logits;               // [chunk, columns]
  const std::int32_t* target;  // of the chunk
  T* dlogits;                  // [chunk, columns]; may be the logits
  double* losses;
  std::int64_t V, columns;
  float gradient_scale;
  LogitMap map;

  static constexpr int kThreads = 512;

  template <typename Block>
  TERRACE_KERNEL void not_counted(Block& block, T* gradients) const {
    block.for_each_thread([&](int t) {
      if (t == 0) losses[block.index()] = 0.0;
      for (std::int64_t v = t; v < columns; v += kThreads) gradients[v] = T{};
    });
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    float* const row = logits + block.index() * columns;
    T* const gradients = dlogits + block.index() * columns;
    const std::int64_t counted = target[block.index()];
    if (counted < 0) return not_counted(block, gradients);
    const RowExponentials exponentials = exponentials_of<kThreads, Mapped>(block, row, V, map);
    const float max = exponentials.max;
    const float sum = exponentials.sum;
    const double distance = static_cast<double>(max) - static_cast<double>(row[counted]);
    block.sync();  // the logit is read before its gradient may take its place
    block.for_each_thread([&](int t) {
      if (t == 0) losses[block.index()] = distance + ::log(static_cast<double>(sum));
      for (std::int64_t v = t; v < V; v += kThreads) {
        const float logit = row[v];
        const float probability = ::expf(logit - max) / sum;
        float gradient = gradient_scale * (v == counted ? probability - 1.0F : probability);
        if constexpr (Mapped) gradient *= map.slope(logit);
        gradients[v] = round_to<T>(gradient);
      }
      for (std::int64_t v = V + t; v < columns; v += kThreads) gradients[v] = T{};
    });
  }
};

// The kernel that does tree_sum() of kernels/norm_tree.h with one block: the first levels of the
// tree give each thread a part, and the last levels add neighbours.
struct TreeSumKernel {
  const double* values;
  double* sum;
  std::int64_t n;

  static constexpr int kThreads = 256;
  static constexpr int kDepthMax = 64;

  struct Part {
    std::int64_t first, count;
  };

  // Returns the part that `path` leads to; its bits choose a half at each of `levels` levels,
  // highest bit first.
  TERRACE_KERNEL Part part_of(int path, int levels) const {
    Part part{0, n};
    for (int level = levels - 1; level >= 0; --level) {
      const std::int64_t half = part.count / 2;
      if ((path >> level) % 2 == 0) {
        part.count = half;
      } else {
        part = {part.first + half, part.count - half};
      }
    }
    return part;
  }

  // Sums the tree of a part without recursion: the sum of a left half waits until the sum of its
  // right half is there, and the two are then added.
  TERRACE_KERNEL double sum_of(Part whole) const {
    Part parts[kDepthMax];
    double left[kDepthMax];
    bool is_right[kDepthMax];
    int depth = 0;
    parts[0] = whole;
    is_right[0] = false;
    for (;;) {
      while (parts[depth].count > 1) {
        const Part part = parts[depth];
        parts[depth + 1] = {part.first, part.count / 2};
        is_right[depth + 1] = false;
        ++depth;
      }
      double sum = values[parts[depth].first];
      while (depth > 0 && is_right[depth]) {
        --depth;
        sum = left[depth] + sum;
      }
      if (depth == 0) return sum;
      --depth;
      left[depth] = sum;
      const Part part = parts[depth];
      const std::int64_t half = part.count / 2;
      parts[depth + 1] = {part.first + half, part.count - half};
      is_right[depth + 1] = true;
      ++depth;
    }
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const sums = reinterpret_cast<double*>(block.shared_memory());
    int levels = 0;
    while (levels < 8 && (n >> (levels + 1)) > 0) ++levels;
    block.for_each_thread([&](int t) {
      if (t < (1 << levels)) sums[t] = sum_of(part_of(t, levels));
    });
    for (int step = 1; step < (1 << levels); step *= 2) {
      block.sync();
      block.for_each_thread([&](int t) {
        if (t % (2 * step) == 0 && t + step < (1 << levels)) sums[t] += sums[t + step];
      });
    }
    block.for_each_thread([&](int t) {
      if (t == 0) *sum = sums[0];
    });
  }
};

template <typename Launcher>
void launch_tree_sum(Launcher& launcher, const double* values, double* sum, std::int64_t n) {
  launcher.template launch<TreeSumKernel::kThreads>("head_loss", TreeSumKernel{values, sum, n}, 1,
                                                    TreeSumKernel::kThreads * sizeof(double));
}

struct HeadShape {
  std::int64_t R, V, C, columns, chunk;

  bool is_padded() const { return columns != V; }
};

inline HeadShape head_shape(const HeadLoss& op) {
  const std::int64_t V = op.weight.shape[0];
  const std::int64_t C = op.weight.shape[1];
  const std::int64_t R = op.h.elements() / C;
  const std::int64_t columns = head_columns(V);
  return {R, V, C, columns, std::min(R, head_rows(columns))};
}

// Returns the bytes of workspace for [columns, C] of the compute type, the weight followed by rows
// of zeros; 0 where the weight has all the columns.
inline std::size_t head_weight_workspace(const HeadLoss& op, const HeadShape& s) {
  if (!s.is_padded()) return 0;
  return WorkspaceCutter::padded_bytes(static_cast<std::size_t>(s.columns * s.C) *
                                       size_of(op.weight.dtype));
}

template <typename Launcher>
const std::byte* padded_weight(Launcher& launcher, WorkspaceCutter& cutter, const HeadLoss& op,
                               const HeadShape& s) {
  if (!s.is_padded()) return op.weight.data;
  const std::size_t row_bytes = static_cast<std::size_t>(s.C) * size_of(op.weight.dtype);
  const std::size_t own_bytes = static_cast<std::size_t>(s.V) * row_bytes;
  const std::size_t bytes = static_cast<std::size_t>(s.columns) * row_bytes;
  auto* const weight = cutter.take<std::byte>(static_cast<std::int64_t>(bytes));
  launcher.copy(weight, op.weight.data, own_bytes);
  launcher.zero(weight + own_bytes, bytes - own_bytes);
  return weight;
}

// The arrays that a call keeps in workspace.
struct HeadWorkspace {
  double* losses;           // [R]
  float* logits;            // [chunk, columns]
  std::byte* dlogits;       // [chunk, columns] of the compute type; in fp32 the logits themselves
  const std::byte* weight;  // [columns, C]: see padded_weight()
  // [columns, C], where the gradient is added to another or has fewer rows; else the gradient
  // itself, or null where it is not wanted.
  float* dweight;
};

inline bool head_gradient_is_apart(const HeadLoss& op, const HeadShape& s) {
  return !op.dweight.empty() && (s.is_padded() || op.mode == GradientMode::kAccumulate);
}

inline std::size_t head_loss_workspace(const HeadLoss& op) {
  const HeadShape s = head_shape(op);
  const auto logits = static_cast<std::size_t>(s.chunk * s.columns);
  std::size_t bytes = WorkspaceCutter::padded_bytes(static_cast<std::size_t>(s.R) * sizeof(double));
  bytes += WorkspaceCutter::padded_bytes(logits * sizeof(float));
  if (op.h.dtype != DType::kF32)
    bytes += WorkspaceCutter::padded_bytes(logits * size_of(op.h.dtype));
  bytes += head_weight_workspace(op, s);
  if (!head_gradient_is_apart(op, s)) return bytes;
  return bytes +
         WorkspaceCutter::padded_like(static_cast<std::size_t>(s.columns * s.C) * sizeof(float));
}

template <typename Launcher>
HeadWorkspace cut_head_workspace(Launcher& launcher, const HeadLoss& op, const HeadShape& s) {
  WorkspaceCutter cutter(launcher.workspace());
  HeadWorkspace space;
  space.losses = cutter.take<double>(s.R);
  space.logits = cutter.take<float>(s.chunk * s.columns);
  const auto dlogits_bytes = static_cast<std::int64_t>(size_of(op.h.dtype)) * s.chunk * s.columns;
  space.dlogits = op.h.dtype == DType::kF32 ? reinterpret_cast<std::byte*>(space.logits)
                                            : cutter.take<std::byte>(dlogits_bytes);
  space.weight = padded_weight(launcher, cutter, op, s);
  space.dweight = op.dweight.empty() ? nullptr : op.dweight.as<float>();
  if (head_gradient_is_apart(op, s)) {
    space.dweight = cutter.take_like<float>(s.columns * s.C, space.dweight);
  }
  return space;
}

// Rows of a micro-batch whose logits are computed together.
struct HeadChunk {
  const HeadShape& shape;
  std::int64_t first, rows;
};

// Computes the logits of a chunk. `weight` has `columns` rows.
template <typename Launcher>
void head_logits(Launcher& launcher, const HeadLoss& op, const HeadChunk& chunk,
                 const std::byte* weight, float* logits) {
  const HeadShape& s = chunk.shape;
  const auto offset = static_cast<std::size_t>(chunk.first * s.C) * size_of(op.h.dtype);
  launcher.product({.rows = chunk.rows,
                    .cols = s.columns,
                    .depth = s.C,
                    .a = op.h.data + offset,
                    .a_row = s.C,
                    .a_depth = 1,
                    .b = weight,
                    .b_depth = 1,
                    .b_col = s.C,
                    .c = reinterpret_cast<std::byte*>(logits),
                    .type = op.h.dtype,
                    .c_type = DType::kF32});
}

struct CopyLogitsBody {
  const float* logits;  // [rows, columns]
  float* target;        // [rows, V]
  std::int64_t V, columns;
  LogitMap map;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t v, std::int64_t) const {
    target[row * V + v] = map.logit(logits[row * columns + v]);
  }
};

// Computes dh of the chunk and the chunk's share of dweight. The first chunk's share is stored, the
// others are added.
template <typename Launcher>
void head_gradients(Launcher& launcher, const HeadLoss& op, const HeadChunk& chunk,
                    const HeadWorkspace& space) {
  const HeadShape& s = chunk.shape;
  const auto offset = static_cast<std::size_t>(chunk.first * s.C) * size_of(op.h.dtype);
  launcher.product({.rows = chunk.rows,
                    .cols = s.C,
                    .depth = s.columns,
                    .a = space.dlogits,
                    .a_row = s.columns,
                    .a_depth = 1,
                    .b = space.weight,
                    .b_depth = s.C,
                    .b_col = 1,
                    .c = op.dh.data + offset,
                    .type = op.h.dtype,
                    .c_type = op.h.dtype});
  if (space.dweight == nullptr) return;
  launcher.product({.rows = s.columns,
                    .cols = s.C,
                    .depth = chunk.rows,
                    .a = space.dlogits,
                    .a_row = 1,
                    .a_depth = s.columns,
                    .b = op.h.data + offset,
                    .b_depth = s.C,
                    .b_col = 1,
                    .c = reinterpret_cast<std::byte*>(space.dweight),
                    .type = op.h.dtype,
                    .c_type = DType::kF32,
                    .joins = chunk.first != 0});
}

// Moves a gradient that was computed in workspace to dweight, once it is complete.
template <typename Launcher>
void finish_head_gradient(Launcher& launcher, const HeadLoss& op, const HeadShape& s,
                          const HeadWorkspace& space) {
  if (!head_gradient_is_apart(op, s)) return;
  float* const gradient = op.dweight.as<float>();
  if (op.mode == GradientMode::kAssign) {
    return launcher.copy(gradient, space.dweight,
                         static_cast<std::size_t>(s.V * s.C) * sizeof(float));
  }
  const AddBody<float> body{gradient, space.dweight, gradient,
                            may_load_packs({gradient, space.dweight}, 0)};
  launch_map<kPackOf<float>>(launcher, "head_loss", 1, s.V * s.C, body);
}

// Computes the row losses of the chunk whose first row is `first`.
template <typename Launcher>
void head_row_losses(Launcher& launcher, const HeadLoss& op, const HeadShape& s, std::int64_t first,
                     const HeadWorkspace& space) {
  const LogitMap map = logit_map(op);
  with_compute_type(op.h.dtype, [&]<typename T>(std::type_identity<T>) {
    with_mapping(map, [&]<bool Mapped>(std::bool_constant<Mapped>) {
      using Kernel = RowLossKernel<T, Mapped>;
      const Kernel kernel{space.logits,
                          op.target.as<std::int32_t>() + first,
                          reinterpret_cast<T*>(space.dlogits),
                          space.losses + first,
                          s.V,
                          s.columns,
                          op.gradient_scale,
                          map};
      launcher.template launch<Kernel::kThreads>("head_loss", kernel,
                                                 std::min(s.chunk, s.R - first));
    });
  });
}

template <typename Launcher>
void head_loss(Launcher& launcher, const HeadLoss& op) {
  TERRACE_CHECK(!op.target.empty() || op.dh.empty());
  TERRACE_CHECK(op.target.empty() || op.loss_sum != nullptr);
  const HeadShape s = head_shape(op);
  const HeadWorkspace space = cut_head_workspace(launcher, op, s);
  const LogitMap map = logit_map(op);
  for (std::int64_t first = 0; first < s.R; first += s.chunk) {
    const std::int64_t rows = std::min(s.chunk, s.R - first);
    const HeadChunk chunk = {s, first, rows};
    head_logits(launcher, op, chunk, space.weight, space.logits);
    if (!op.logits.empty()) {
      const CopyLogitsBody body{space.logits, op.logits.as<float>() + first * s.V, s.V, s.columns,
                                map};
      launch_map<1>(launcher, "head_loss", rows, s.V, body);
    }
    if (op.target.empty()) continue;
    head_row_losses(launcher, op, s, first, space);
    if (!op.dh.empty()) head_gradients(launcher, op, chunk, space);
  }
  if (!op.target.empty()) launch_tree_sum(launcher, space.losses, op.loss_sum, s.R);
  finish_head_gradient(launcher, op, s, space);
}

}  // namespace terrace::shared
