#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Returns head `index` of row `row`.
template <typename T>
T* head_of(const StridedRows& rows, std::int64_t row, std::int64_t index, std::int64_t D) {
  return reinterpret_cast<T*>(rows.data) + row * rows.stride + index * D;
}

void check_rows(const StridedRows& rows, std::int64_t count, std::int64_t width, DType dtype) {
  TERRACE_CHECK(rows.dtype == dtype);
  TERRACE_CHECK_EQ(rows.rows, count);
  TERRACE_CHECK_EQ(rows.width, width);
}

template <typename Op>
void check_shape(const Op& op) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  TERRACE_CHECK_EQ(H % G, 0);
  TERRACE_CHECK_LE(Q, K);
  check_rows(op.q, B * Q, H * D, op.out.dtype);
  check_rows(op.k, B * K, G * D, op.out.dtype);
  check_rows(op.v, B * K, G * D, op.out.dtype);
  TERRACE_CHECK_EQ(op.out.elements(), B * Q * H * D);
  TERRACE_CHECK_EQ(op.log_sum_exp.elements(), B * H * Q);
  if (!op.rule.sinks.empty()) TERRACE_CHECK_EQ(op.rule.sinks.elements(), H);
}

template <typename T>
Wide<T> dot(const T* a, const T* b, std::int64_t D) {
  Wide<T> sum = 0;
  for (std::int64_t d = 0; d < D; ++d) sum += load(a[d]) * load(b[d]);
  return sum;
}

// One query of one head, with the keys [first, end) that it sees.
struct Query {
  std::int64_t b, h, g, i;
  std::int64_t first, end;
};

template <typename Op>
Query query_of(const Op& op, std::int64_t b, std::int64_t h, std::int64_t i) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  const std::int64_t position = K - Q + i;
  Query query{b, h, h / (H / G), i, 0, position + 1};
  if (op.rule.window > 0) query.first = std::max<std::int64_t>(0, position + 1 - op.rule.window);
  if (!op.rule.first_keys.empty()) {
    const std::int64_t start = op.rule.first_keys.template as<std::int32_t>()[b * Q + i];
    TERRACE_CHECK_LE(start, position);
    query.first = std::max(query.first, start);
  }
  return query;
}

// A score, and its derivative by q.k.
template <typename T>
struct Score {
  Wide<T> value, slope;
};

template <typename T>
Score<T> score_of(const AttentionRule& rule, Wide<T> product) {
  const Wide<T> scale = static_cast<Wide<T>>(rule.scale);
  if (rule.soft_cap <= 0) return {scale * product, scale};
  const Wide<T> cap = static_cast<Wide<T>>(rule.soft_cap);
  const Wide<T> bent = std::tanh(scale * product / cap);
  return {cap * bent, scale * (1 - bent * bent)};
}

template <typename T>
void forward_query(const AttentionForward& op, const Query& at, std::span<Wide<T>> weights) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  const T* query = head_of<T>(op.q, at.b * Q + at.i, at.h, D);
  for (std::int64_t j = at.first; j < at.end; ++j) {
    const T* key = head_of<T>(op.k, at.b * K + j, at.g, D);
    weights[j] = score_of<T>(op.rule, dot<T>(query, key, D)).value;
  }
  Wide<T> max = *std::max_element(weights.begin() + at.first, weights.begin() + at.end);
  Wide<T> sum = 0;
  if (!op.rule.sinks.empty()) {
    const Wide<T> sink = load(op.rule.sinks.as<T>()[at.h]);
    max = std::max(max, sink);
    sum = std::exp(sink - max);
  }
  for (std::int64_t j = at.first; j < at.end; ++j) {
    weights[j] = std::exp(weights[j] - max);
    sum += weights[j];
  }
  T* out = op.out.as<T>() + ((at.b * Q + at.i) * H + at.h) * D;
  for (std::int64_t d = 0; d < D; ++d) {
    Wide<T> mixed = 0;
    for (std::int64_t j = at.first; j < at.end; ++j) {
      mixed += weights[j] * load(head_of<T>(op.v, at.b * K + j, at.g, D)[d]);
    }
    out[d] = round_to<T>(mixed / sum);
  }
  op.log_sum_exp.as<Wide<T>>()[(at.b * H + at.h) * Q + at.i] = max + std::log(sum);
}

template <typename T>
void forward(const KernelContext& context, const AttentionForward& op) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  check_shape(op);
  WorkspaceCutter workspace(context.workspace);
  const std::span<Wide<T>> weights = workspace.take<Wide<T>>(K);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t i = 0; i < Q; ++i) forward_query<T>(op, query_of(op, b, h, i), weights);
    }
  }
}

// Gradients of one key-value head, complete only when all queries of its group have added theirs.
template <typename T>
struct GroupGradient {
  std::span<Wide<T>> dkey, dvalue;  // [K, D]
  std::span<Wide<T>> dquery;        // [D], of one query
};

template <typename T>
void backward_query(const AttentionBackward& op, const Query& at, const GroupGradient<T>& sum) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  const std::int64_t out_offset = ((at.b * Q + at.i) * H + at.h) * D;
  const T* dout = op.dout.as<T>() + out_offset;
  const T* query = head_of<T>(op.q, at.b * Q + at.i, at.h, D);
  const Wide<T> log_sum_exp = op.log_sum_exp.as<Wide<T>>()[(at.b * H + at.h) * Q + at.i];
  const Wide<T> mean = dot<T>(dout, op.out.as<T>() + out_offset, D);
  std::fill(sum.dquery.begin(), sum.dquery.end(), Wide<T>{0});
  for (std::int64_t j = at.first; j < at.end; ++j) {
    const T* key = head_of<T>(op.k, at.b * K + j, at.g, D);
    const T* value = head_of<T>(op.v, at.b * K + j, at.g, D);
    const Score<T> score = score_of<T>(op.rule, dot<T>(query, key, D));
    const Wide<T> weight = std::exp(score.value - log_sum_exp);
    const Wide<T> dproduct = score.slope * (weight * (dot<T>(dout, value, D) - mean));
    for (std::int64_t d = 0; d < D; ++d) {
      sum.dquery[d] += dproduct * load(key[d]);
      sum.dkey[j * D + d] += dproduct * load(query[d]);
      sum.dvalue[j * D + d] += weight * load(dout[d]);
    }
  }
  T* dquery = head_of<T>(op.dq, at.b * Q + at.i, at.h, D);
  for (std::int64_t d = 0; d < D; ++d) dquery[d] = round_to<T>(sum.dquery[d]);
}

template <typename T>
void backward_group(const AttentionBackward& op, std::int64_t b, std::int64_t g,
                    const GroupGradient<T>& sum) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  std::fill(sum.dkey.begin(), sum.dkey.end(), Wide<T>{0});
  std::fill(sum.dvalue.begin(), sum.dvalue.end(), Wide<T>{0});
  for (std::int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
    for (std::int64_t i = 0; i < Q; ++i) backward_query<T>(op, query_of(op, b, h, i), sum);
  }
  for (std::int64_t j = 0; j < K; ++j) {
    T* dkey = head_of<T>(op.dk, b * K + j, g, D);
    T* dvalue = head_of<T>(op.dv, b * K + j, g, D);
    for (std::int64_t d = 0; d < D; ++d) {
      dkey[d] = round_to<T>(sum.dkey[j * D + d]);
      dvalue[d] = round_to<T>(sum.dvalue[j * D + d]);
    }
  }
}

template <typename T>
void backward(const KernelContext& context, const AttentionBackward& op) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  check_shape(op);
  TERRACE_CHECK_EQ(Q, K);
  check_rows(op.dq, B * Q, H * D, op.out.dtype);
  check_rows(op.dk, B * K, G * D, op.out.dtype);
  check_rows(op.dv, B * K, G * D, op.out.dtype);
  TERRACE_CHECK_EQ(op.dout.elements(), op.out.elements());
  WorkspaceCutter workspace(context.workspace);
  GroupGradient<T> sum;
  sum.dkey = workspace.take<Wide<T>>(K * D);
  sum.dvalue = workspace.take<Wide<T>>(K * D);
  sum.dquery = workspace.take<Wide<T>>(D);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t g = 0; g < G; ++g) backward_group<T>(op, b, g, sum);
  }
}

template <typename T>
void sinks_backward(const AttentionSinksBackward& op) {
  const auto& [B, Q, K, H, G, D] = op.shape;
  TERRACE_CHECK_EQ(op.sinks.elements(), H);
  TERRACE_CHECK_EQ(op.dsinks.elements(), H);
  TERRACE_CHECK_EQ(op.log_sum_exp.elements(), B * H * Q);
  TERRACE_CHECK_EQ(op.out.elements(), B * Q * H * D);
  TERRACE_CHECK_EQ(op.dout.elements(), op.out.elements());
  for (std::int64_t h = 0; h < H; ++h) {
    Wide<T> sum = 0;
    for (std::int64_t row = 0; row < B * Q; ++row) {
      const std::int64_t at = (row * H + h) * D;
      const Wide<T> log_sum_exp = op.log_sum_exp.as<Wide<T>>()[(row / Q * H + h) * Q + row % Q];
      const Wide<T> weight = std::exp(load(op.sinks.as<T>()[h]) - log_sum_exp);
      sum -= weight * dot<T>(op.dout.as<T>() + at, op.out.as<T>() + at, D);
    }
    join_gradient(op.dsinks.as<Wide<T>>()[h], sum, op.mode);
  }
}

}  // namespace

void attention_forward(const KernelContext& context, const AttentionForward& op) {
  with_compute_type(op.q.dtype,
                    [&]<typename T>(std::type_identity<T>) { forward<T>(context, op); });
}

void attention_backward(const KernelContext& context, const AttentionBackward& op) {
  with_compute_type(op.q.dtype,
                    [&]<typename T>(std::type_identity<T>) { backward<T>(context, op); });
}

void attention_sinks_backward(const KernelContext&, const AttentionSinksBackward& op) {
  with_compute_type(op.out.dtype,
                    [&]<typename T>(std::type_identity<T>) { sinks_backward<T>(op); });
}

std::size_t attention_forward_workspace(const AttentionForward& op, int) {
  return WorkspaceCutter::padded_bytes(op.shape.keys);
}

std::size_t attention_backward_workspace(const AttentionBackward& op, int) {
  return WorkspaceCutter::padded_bytes((2 * op.shape.keys + 1) * op.shape.head_width);
}

}  // namespace terrace::reference
