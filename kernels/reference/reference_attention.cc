#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Where the heads of a row of qkv (or dqkv) lie: queries, then keys, then values.
template <typename T>
struct HeadRows {
  T* qkv;
  AttentionShape shape;

  T* head(std::int64_t b, std::int64_t t, std::int64_t index) const {
    const std::int64_t heads = shape.heads + 2 * shape.key_value_heads;
    return qkv + ((b * shape.sequence + t) * heads + index) * shape.head_width;
  }
  T* query(std::int64_t b, std::int64_t t, std::int64_t h) const { return head(b, t, h); }
  T* key(std::int64_t b, std::int64_t t, std::int64_t g) const {
    return head(b, t, shape.heads + g);
  }
  T* value(std::int64_t b, std::int64_t t, std::int64_t g) const {
    return head(b, t, shape.heads + shape.key_value_heads + g);
  }
};

void check_shape(const AttentionShape& shape, const TensorView& qkv, const TensorView& out) {
  const std::int64_t R = shape.batch * shape.sequence;
  TERRACE_CHECK_EQ(shape.heads % shape.key_value_heads, 0);
  TERRACE_CHECK_EQ(qkv.elements(),
                   R * (shape.heads + 2 * shape.key_value_heads) * shape.head_width);
  TERRACE_CHECK_EQ(out.elements(), R * shape.heads * shape.head_width);
}

template <typename T>
Wide<T> dot(const T* a, const T* b, std::int64_t D) {
  Wide<T> sum = 0;
  for (std::int64_t d = 0; d < D; ++d) sum += load(a[d]) * load(b[d]);
  return sum;
}

// One query of one head against the keys up to its own position.
template <typename T>
struct Query {
  std::int64_t b, h, g, i;
};

template <typename T>
void forward_query(const AttentionForward& op, const Query<T>& at, std::span<Wide<T>> weights) {
  const auto& [B, S, H, G, D] = op.shape;
  const HeadRows<const T> rows{op.qkv.as<T>(), op.shape};
  const Wide<T> scale = static_cast<Wide<T>>(op.scale);
  const T* query = rows.query(at.b, at.i, at.h);
  for (std::int64_t j = 0; j <= at.i; ++j) {
    weights[j] = scale * dot<T>(query, rows.key(at.b, j, at.g), D);
  }
  const Wide<T> max = *std::max_element(weights.begin(), weights.begin() + at.i + 1);
  Wide<T> sum = 0;
  for (std::int64_t j = 0; j <= at.i; ++j) {
    weights[j] = std::exp(weights[j] - max);
    sum += weights[j];
  }
  T* out = op.out.as<T>() + ((at.b * S + at.i) * H + at.h) * D;
  for (std::int64_t d = 0; d < D; ++d) {
    Wide<T> mixed = 0;
    for (std::int64_t j = 0; j <= at.i; ++j) {
      mixed += weights[j] * load(rows.value(at.b, j, at.g)[d]);
    }
    out[d] = round_to<T>(mixed / sum);
  }
  op.log_sum_exp.as<Wide<T>>()[(at.b * H + at.h) * S + at.i] = max + std::log(sum);
}

template <typename T>
void forward(const KernelContext& context, const AttentionForward& op) {
  const auto& [B, S, H, G, D] = op.shape;
  check_shape(op.shape, op.qkv, op.out);
  WorkspaceCutter workspace(context.workspace);
  const std::span<Wide<T>> weights = workspace.take<Wide<T>>(S);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t i = 0; i < S; ++i) {
        forward_query<T>(op, {b, h, h / (H / G), i}, weights);
      }
    }
  }
}

// Gradients of one key-value head, complete only when all queries of its group have added theirs.
template <typename T>
struct GroupGradient {
  std::span<Wide<T>> dkey, dvalue;  // [S, D]
  std::span<Wide<T>> dquery;        // [D], of one query
};

template <typename T>
void backward_query(const AttentionBackward& op, const Query<T>& at, const GroupGradient<T>& sum) {
  const auto& [B, S, H, G, D] = op.shape;
  const HeadRows<const T> rows{op.qkv.as<T>(), op.shape};
  const Wide<T> scale = static_cast<Wide<T>>(op.scale);
  const std::int64_t out_offset = ((at.b * S + at.i) * H + at.h) * D;
  const T* dout = op.dout.as<T>() + out_offset;
  const T* query = rows.query(at.b, at.i, at.h);
  const Wide<T> log_sum_exp = op.log_sum_exp.as<Wide<T>>()[(at.b * H + at.h) * S + at.i];
  const Wide<T> mean = dot<T>(dout, op.out.as<T>() + out_offset, D);
  std::fill(sum.dquery.begin(), sum.dquery.end(), Wide<T>{0});
  for (std::int64_t j = 0; j <= at.i; ++j) {
    const T* key = rows.key(at.b, j, at.g);
    const Wide<T> weight = std::exp(scale * dot<T>(query, key, D) - log_sum_exp);
    const Wide<T> dscore = scale * (weight * (dot<T>(dout, rows.value(at.b, j, at.g), D) - mean));
    for (std::int64_t d = 0; d < D; ++d) {
      sum.dquery[d] += dscore * load(key[d]);
      sum.dkey[j * D + d] += dscore * load(query[d]);
      sum.dvalue[j * D + d] += weight * load(dout[d]);
    }
  }
  T* dquery = HeadRows<T>{op.dqkv.as<T>(), op.shape}.query(at.b, at.i, at.h);
  for (std::int64_t d = 0; d < D; ++d) dquery[d] = round_to<T>(sum.dquery[d]);
}

template <typename T>
void backward_group(const AttentionBackward& op, std::int64_t b, std::int64_t g,
                    const GroupGradient<T>& sum) {
  const auto& [B, S, H, G, D] = op.shape;
  std::fill(sum.dkey.begin(), sum.dkey.end(), Wide<T>{0});
  std::fill(sum.dvalue.begin(), sum.dvalue.end(), Wide<T>{0});
  for (std::int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
    for (std::int64_t i = 0; i < S; ++i) backward_query<T>(op, {b, h, g, i}, sum);
  }
  const HeadRows<T> gradients{op.dqkv.as<T>(), op.shape};
  for (std::int64_t j = 0; j < S; ++j) {
    for (std::int64_t d = 0; d < D; ++d) {
      gradients.key(b, j, g)[d] = round_to<T>(sum.dkey[j * D + d]);
      gradients.value(b, j, g)[d] = round_to<T>(sum.dvalue[j * D + d]);
    }
  }
}

template <typename T>
void backward(const KernelContext& context, const AttentionBackward& op) {
  const auto& [B, S, H, G, D] = op.shape;
  check_shape(op.shape, op.qkv, op.out);
  check_shape(op.shape, op.dqkv, op.dout);
  WorkspaceCutter workspace(context.workspace);
  GroupGradient<T> sum;
  sum.dkey = workspace.take<Wide<T>>(S * D);
  sum.dvalue = workspace.take<Wide<T>>(S * D);
  sum.dquery = workspace.take<Wide<T>>(D);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t g = 0; g < G; ++g) backward_group<T>(op, b, g, sum);
  }
}

}  // namespace

void attention_forward(const KernelContext& context, const AttentionForward& op) {
  with_compute_type(op.qkv.dtype,
                    [&]<typename T>(std::type_identity<T>) { forward<T>(context, op); });
}

void attention_backward(const KernelContext& context, const AttentionBackward& op) {
  with_compute_type(op.qkv.dtype,
                    [&]<typename T>(std::type_identity<T>) { backward<T>(context, op); });
}

std::size_t attention_forward_workspace(const AttentionForward& op, int) {
  return WorkspaceCutter::padded_bytes(op.shape.sequence);
}

std::size_t attention_backward_workspace(const AttentionBackward& op, int) {
  return WorkspaceCutter::padded_bytes((2 * op.shape.sequence + 1) * op.shape.head_width);
}

}  // namespace terrace::reference
