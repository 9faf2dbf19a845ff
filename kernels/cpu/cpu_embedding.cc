#include "kernels/cpu/cpu_embedding.h"

#include <algorithm>
#include <span>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/named_rows.h"
#include "kernels/cpu/parallel_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// Returns row r's row of wpe: for the position that is given, or else for the row's place in its
// sequence, where row 0 counts as first_row.
template <typename T, typename Op>
HWY_INLINE const T* position_row_of(const Op& op, std::int64_t r, std::int64_t first_row = 0) {
  std::int64_t position = 0;
  if (op.positions.empty()) {
    position = (first_row + r) % op.sequence;
  } else {
    position = op.positions.template as<const std::int32_t>()[r];
    TERRACE_CHECK_LE(0, position);
    TERRACE_CHECK_LT(position, op.wpe.shape[0]);
  }
  return op.wpe.template as<const T>() + position * op.wpe.shape[1];
}

template <typename T>
void embed_scaled(const EmbeddingForward& op, std::int64_t r, const T* token_row) {
  const std::int64_t C = op.wte.shape[1];
  const Vec scale = splat(op.scale);
  T* h = op.h.as<T>() + r * C;
  const T* position_row = op.wpe.empty() ? nullptr : position_row_of<T>(op, r);
  for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    Vec sum = hn::Mul(scale, load_n(token_row + i, n));
    if (position_row != nullptr) sum = hn::Add(sum, load_n(position_row + i, n));
    store_n(sum, h + i, n);
  });
}

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
    if (op.scale != 1.0F) {
      embed_scaled(op, r, token_row);
      continue;
    }
    if (op.wpe.empty()) {
      std::copy_n(token_row, C, h);
      continue;
    }
    const T* position_row = position_row_of<T>(op, r);
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
    const T* position_row = position_row_of<T>(op, r, op.first_row);
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

// target = (0 or target) + scale * sum over micro-batches of (sum of its rows), in the order of
// `rows`. A key of `rows` holds (micro-batch * R + row) in its low half; the keys of a micro-batch
// are together.
template <typename T>
void sum_named_rows(const NamedRows& op, std::span<const std::uint64_t> rows, std::int64_t column,
                    std::int64_t columns, float* target) {
  const std::int64_t C = op.target.shape[1];
  const auto R = static_cast<std::uint64_t>(op.dh[0].elements() / C);
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
    total = hn::Mul(total, splat(op.scale));
    if (op.accumulate) total = hn::Add(load_n(target + i, n), total);
    store_n(total, target + i, n);
  });
}

// Sums the block's columns of every name whose first key is in the block.
void add_named_rows(const NamedRows& op, std::span<const std::uint64_t> keys,
                    const KeyBlock& block) {
  const std::int64_t C = op.target.shape[1];
  std::size_t k = block.begin;
  while (k > 0 && k < block.end && keys[k] >> 32 == keys[k - 1] >> 32) ++k;
  while (k < block.end) {
    const std::uint64_t name = keys[k] >> 32;
    std::size_t last = k;
    while (last < keys.size() && keys[last] >> 32 == name) ++last;
    float* target = op.target.as<float>() + static_cast<std::int64_t>(name) * C + block.column;
    const auto rows = keys.subspan(k, last - k);
    if (op.dh[0].dtype == DType::kF32) {
      sum_named_rows<float>(op, rows, block.column, block.columns, target);
    } else {
      sum_named_rows<Bf16>(op, rows, block.column, block.columns, target);
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
HWY_EXPORT(add_named_rows);
HWY_EXPORT(add_position_rows);

namespace {

constexpr std::int64_t kRowBlock = 16;
constexpr std::int64_t kKeyBlock = 128;
constexpr std::int64_t kColumnBlock = 256;

// Returns the sorted (name, micro-batch, row) of every row of the step whose name has a row in the
// target, in the workspace; names are counted from the first.
std::span<const std::uint64_t> sorted_keys(const KernelContext& context, const Names& names) {
  const std::int64_t R = names.of_rows[0].elements();
  const auto micro_batches = static_cast<std::int64_t>(names.of_rows.size());
  TERRACE_CHECK_LT(R * micro_batches, std::int64_t{1} << 32);
  TERRACE_CHECK_LE(static_cast<std::size_t>(R * micro_batches) * sizeof(std::uint64_t),
                   context.workspace.size());
  auto* keys = reinterpret_cast<std::uint64_t*>(context.workspace.data());
  std::uint64_t row = 0;
  std::uint64_t count = 0;
  for (const TensorView& micro_batch : names.of_rows) {
    TERRACE_CHECK_EQ(micro_batch.elements(), R);
    const std::int32_t* of_rows = micro_batch.as<const std::int32_t>();
    for (std::int64_t r = 0; r < R; ++r, ++row) {
      const std::int64_t name = of_rows[r] - names.first;
      if (of_rows[r] == names.left_out) continue;
      if (names.skips_others && (name < 0 || name >= names.count)) continue;
      TERRACE_CHECK_LE(0, name);
      TERRACE_CHECK_LT(name, names.count);
      keys[count++] = static_cast<std::uint64_t>(name) << 32 | row;
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

// Sets every row of target to (0 or itself) + the sum of the rows with its name.
void sum_rows(const KernelContext& context, const Names& names, const NamedRows& op) {
  const auto keys = sorted_keys(context, names);
  const auto key_count = static_cast<std::int64_t>(keys.size());
  if (!op.accumulate) zero_rows(context, op.target);
  const std::int64_t C = op.target.shape[1];
  const std::int64_t column_blocks = blocks_of(C, kColumnBlock);
  const std::int64_t key_blocks = blocks_of(key_count, kKeyBlock);
  context.workers->parallel_for(key_blocks * column_blocks, [&](std::int64_t index, int) {
    const std::int64_t begin = index / column_blocks * kKeyBlock;
    const std::int64_t column = index % column_blocks * kColumnBlock;
    const KeyBlock block = {.begin = static_cast<std::size_t>(begin),
                            .end = static_cast<std::size_t>(std::min(begin + kKeyBlock, key_count)),
                            .column = column,
                            .columns = std::min(kColumnBlock, C - column)};
    HWY_DYNAMIC_DISPATCH(add_named_rows)(op, keys, block);
  });
}

template <typename Op>
void check_positions(const Op& op, std::int64_t rows) {
  if (op.positions.empty()) {
    TERRACE_CHECK_LE(op.sequence, op.wpe.shape[0]);
  } else {
    TERRACE_CHECK_EQ(op.positions.elements(), rows);
  }
}

Names names_of_tokens(const EmbeddingBackward& op) {
  return {.of_rows = op.tokens,
          .first = op.first_token.value_or(0),
          .count = op.dwte.shape[0],
          .skips_others = op.first_token.has_value(),
          .left_out = op.padding_token < 0 ? std::nullopt : std::optional(op.padding_token)};
}

}  // namespace

void cpu_embedding_forward(const KernelContext& context, const EmbeddingForward& op) {
  const std::int64_t rows = op.tokens.elements();
  TERRACE_CHECK(op.h.dtype == DType::kF32 || op.h.dtype == DType::kBF16);
  TERRACE_CHECK_EQ(op.h.elements(), rows * op.wte.shape[1]);
  if (!op.wpe.empty()) check_positions(op, rows);
  for_each_block(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(embed)(op, begin, end);
  });
}

void cpu_add_positions(const KernelContext& context, const AddPositions& op) {
  TERRACE_CHECK(op.h.dtype == DType::kF32 || op.h.dtype == DType::kBF16);
  const std::int64_t rows = op.h.elements() / op.wpe.shape[1];
  check_positions(op, rows);
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
  if (!op.dwte.empty()) {
    sum_rows(context, names_of_tokens(op),
             {op.dh, op.dwte, op.scale, op.wte_mode == GradientMode::kAccumulate});
  }
  if (op.dwpe.empty()) return;
  if (!op.positions.empty()) {
    TERRACE_CHECK_EQ(op.positions.size(), op.dh.size());
    return sum_rows(context, {.of_rows = op.positions, .count = op.dwpe.shape[0]},
                    {op.dh, op.dwpe, 1.0F, false});
  }
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
