#include "kernels/cpu/cpu_embedding.h"

#include <algorithm>
#include <span>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

template <typename T>
void embed_rows(const EmbeddingForward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.wte.shape[1];
  const std::int32_t* tokens = op.tokens.as<const std::int32_t>();
  for (std::int64_t r = begin; r < end; ++r) {
    T* h = op.h.as<T>() + r * C;
    const std::int64_t token = tokens[r] - op.first_token.value_or(0);
    if (op.first_token.has_value() && (token < 0 || token >= op.wte.shape[0])) {
      std::fill_n(h, C, T{});
      continue;
    }
    TERRACE_CHECK_LE(0, token);
    TERRACE_CHECK_LT(token, op.wte.shape[0]);
    const T* token_row = op.wte.as<const T>() + token * C;
    if (op.wpe.empty()) {
      std::copy_n(token_row, C, h);
      continue;
    }
    const T* position_row = op.wpe.as<const T>() + r % op.sequence * C;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Add(load_n(token_row + i, n), load_n(position_row + i, n)), h + i, n);
    });
  }
}

void embed(const EmbeddingForward& op, std::int64_t begin, std::int64_t end) {
  if (op.h.dtype == DType::kF32) return embed_rows<float>(op, begin, end);
  embed_rows<Bf16>(op, begin, end);
}

template <typename T>
void add_position_to_rows(const AddPositions& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.wpe.shape[1];
  for (std::int64_t r = begin; r < end; ++r) {
    const T* position_row = op.wpe.as<const T>() + (op.first_row + r) % op.sequence * C;
    T* h = op.h.as<T>() + r * C;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      store_n(hn::Add(load_n(h + i, n), load_n(position_row + i, n)), h + i, n);
    });
  }
}

void add_positions(const AddPositions& op, std::int64_t begin, std::int64_t end) {
  if (op.h.dtype == DType::kF32) return add_position_to_rows<float>(op, begin, end);
  add_position_to_rows<Bf16>(op, begin, end);
}

// target = (0 or target) + sum over micro-batches of (sum of its rows), in the order of `rows`. A
// key of `rows` holds (micro-batch * R + row) in its low half, micro-batches together.
template <typename T>
void sum_named_rows(const EmbeddingBackward& op, std::span<const std::uint64_t> rows,
                    std::int64_t column, std::int64_t columns, float* target) {
  const std::int64_t C = op.dwte.shape[1];
  const auto R = static_cast<std::uint64_t>(op.tokens[0].elements());
  const bool accumulate = op.wte_mode == GradientMode::kAccumulate;
  for_each_vector(columns, [&](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    Vec total = hn::Zero(Lanes());
    for (std::size_t k = 0; k < rows.size();) {
      const std::uint64_t micro_batch = (rows[k] & 0xffffffffU) / R;
      const T* dh = op.dh[micro_batch].as<const T>() + column + i;
      Vec sum = hn::Zero(Lanes());
      for (; k < rows.size() && (rows[k] & 0xffffffffU) / R == micro_batch; ++k) {
        const auto row = static_cast<std::int64_t>((rows[k] & 0xffffffffU) % R);
        sum = hn::Add(sum, load_n(dh + row * C, n));
      }
      total = hn::Add(total, sum);
    }
    if (accumulate) total = hn::Add(load_n(target + i, n), total);
    store_n(total, target + i, n);
  });
}

// The columns [column, column + columns) of every token whose first key is in keys[begin, end).
void add_token_rows(const EmbeddingBackward& op, std::span<const std::uint64_t> keys,
                    std::size_t begin, std::size_t end, std::int64_t column, std::int64_t columns) {
  const std::int64_t C = op.dwte.shape[1];
  std::size_t k = begin;
  while (k > 0 && k < end && keys[k] >> 32 == keys[k - 1] >> 32) ++k;
  while (k < end) {
    const std::uint64_t token = keys[k] >> 32;
    std::size_t last = k;
    while (last < keys.size() && keys[last] >> 32 == token) ++last;
    float* target = op.dwte.as<float>() + static_cast<std::int64_t>(token) * C + column;
    const auto rows = keys.subspan(k, last - k);
    if (op.dh[0].dtype == DType::kF32) {
      sum_named_rows<float>(op, rows, column, columns, target);
    } else {
      sum_named_rows<Bf16>(op, rows, column, columns, target);
    }
    k = last;
  }
}

template <typename T>
void sum_position(const EmbeddingBackward& op, std::int64_t position) {
  const std::int64_t C = op.dwte.shape[1];
  const std::int64_t R = op.tokens[0].elements();
  float* target = op.dwpe.as<float>() + position * C;
  for_each_vector(C, [&](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    Vec total = hn::Zero(Lanes());
    for (const TensorView& dh : op.dh) {
      Vec sum = hn::Zero(Lanes());
      for (std::int64_t row = position; position < op.sequence && row < R; row += op.sequence) {
        sum = hn::Add(sum, load_n(dh.as<const T>() + row * C + i, n));
      }
      total = hn::Add(total, sum);
    }
    store_n(total, target + i, n);
  });
}

void add_position_rows(const EmbeddingBackward& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t position = begin; position < end; ++position) {
    if (op.dh[0].dtype == DType::kF32) {
      sum_position<float>(op, position);
    } else {
      sum_position<Bf16>(op, position);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(embed);
HWY_EXPORT(add_positions);
HWY_EXPORT(add_token_rows);
HWY_EXPORT(add_position_rows);

namespace {

constexpr std::int64_t kRowBlock = 16;
constexpr std::int64_t kKeyBlock = 128;
constexpr std::int64_t kColumnBlock = 256;

// (token, micro-batch, row) of every row of the step whose token is in dwte, sorted, in the
// workspace; tokens are counted from the first of dwte.
std::span<const std::uint64_t> sorted_keys(const KernelContext& context,
                                           const EmbeddingBackward& op) {
  const std::int64_t R = op.tokens[0].elements();
  const auto micro_batches = static_cast<std::int64_t>(op.tokens.size());
  TERRACE_CHECK_LT(R * micro_batches, std::int64_t{1} << 32);
  TERRACE_CHECK_LE(static_cast<std::size_t>(R * micro_batches) * sizeof(std::uint64_t),
                   context.workspace.size());
  auto* keys = reinterpret_cast<std::uint64_t*>(context.workspace.data());
  std::uint64_t row = 0;
  std::uint64_t count = 0;
  for (const TensorView& micro_batch : op.tokens) {
    TERRACE_CHECK_EQ(micro_batch.elements(), R);
    const std::int32_t* tokens = micro_batch.as<const std::int32_t>();
    for (std::int64_t r = 0; r < R; ++r, ++row) {
      const std::int64_t token = tokens[r] - op.first_token.value_or(0);
      if (op.first_token.has_value() && (token < 0 || token >= op.dwte.shape[0])) continue;
      TERRACE_CHECK_LE(0, token);
      TERRACE_CHECK_LT(token, op.dwte.shape[0]);
      keys[count++] = static_cast<std::uint64_t>(token) << 32 | row;
    }
  }
  std::sort(keys, keys + count);
  return {keys, count};
}

void zero_rows(const KernelContext& context, const TensorView& target) {
  const std::int64_t elements = target.elements();
  float* data = target.as<float>();
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    std::fill_n(data + begin, end - begin, 0.0F);
  });
}

}  // namespace

void cpu_embedding_forward(const KernelContext& context, const EmbeddingForward& op) {
  const std::int64_t rows = op.tokens.elements();
  TERRACE_CHECK(op.h.dtype == DType::kF32 || op.h.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(op.h.elements(), rows * op.wte.shape[1]);
  if (!op.wpe.empty()) TERRACE_CHECK_LE(op.sequence, op.wpe.shape[0]);
  for_each_block(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(embed)(op, begin, end);
  });
}

void cpu_add_positions(const KernelContext& context, const AddPositions& op) {
  TERRACE_CHECK(op.h.dtype == DType::kF32 || op.h.dtype == DType::kBF16);
  TERRACE_CHECK_LE(op.sequence, op.wpe.shape[0]);
  const std::int64_t rows = op.h.elements() / op.wpe.shape[1];
  for_each_block(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_positions)(op, begin, end);
  });
}

void cpu_embedding_backward(const KernelContext& context, const EmbeddingBackward& op) {
  TERRACE_CHECK_LT(std::size_t{0}, op.tokens.size());
  TERRACE_CHECK_EQ(op.tokens.size(), op.dh.size());
  const std::int64_t C = op.dwte.shape[1];
  for (const TensorView& dh : op.dh) {
    TERRACE_CHECK(dh.dtype == op.dh[0].dtype);
    TERRACE_CHECK(dh.dtype == DType::kF32 || dh.dtype == DType::kBF16);
    TERRACE_CHECK_EQ(dh.elements(), op.tokens[0].elements() * C);
  }
  const auto keys = sorted_keys(context, op);
  const auto key_count = static_cast<std::int64_t>(keys.size());
  if (op.wte_mode == GradientMode::kAssign) zero_rows(context, op.dwte);

  const std::int64_t column_blocks = blocks_of(C, kColumnBlock);
  const std::int64_t key_blocks = blocks_of(key_count, kKeyBlock);
  context.workers->parallel_for(key_blocks * column_blocks, [&](std::int64_t index, int) {
    const std::int64_t begin = index / column_blocks * kKeyBlock;
    const std::int64_t column = index % column_blocks * kColumnBlock;
    HWY_DYNAMIC_DISPATCH(add_token_rows)
    (op, keys, static_cast<std::size_t>(begin),
     static_cast<std::size_t>(std::min(begin + kKeyBlock, key_count)), column,
     std::min(kColumnBlock, C - column));
  });
  if (op.dwpe.empty()) return;
  for_each_block(context, op.dwpe.shape[0], kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_position_rows)(op, begin, end);
  });
}

std::size_t cpu_embedding_backward_workspace(std::int64_t rows, std::int64_t micro_batches,
                                             std::int64_t /*vocabulary*/, std::int64_t /*width*/,
                                             int /*workers*/) {
  return static_cast<std::size_t>(rows * micro_batches) * sizeof(std::uint64_t);
}

}  // namespace terrace
#endif  // HWY_ONCE
