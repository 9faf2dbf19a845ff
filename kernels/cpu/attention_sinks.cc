#include "kernels/cpu/attention_sinks.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_rows.h"

namespace terrace {
namespace {

constexpr std::int64_t kRows = 128;

// Returns the sum over all queries of a head.
double sum_of_head(const AttentionSinksBackward& op, const HeadRows& rows, std::int64_t h) {
  const AttentionShape& s = op.shape;
  const float sink = number_at(op.sinks, h);
  float dots[kRows];
  double sum = 0;
  for (std::int64_t first = 0; first < s.batch * s.queries; first += kRows) {
    const std::int64_t count = std::min(kRows, s.batch * s.queries - first);
    row_dots({.rows = count,
              .width = s.head_width,
              .stride = rows.out_stride(),
              .a = rows.out(op.dout.data, {0, h, 0}, first),
              .b = rows.out(op.out.data, {0, h, 0}, first),
              .dtype = rows.dtype(),
              .sums = dots});
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = first + i;
      const float log_sum_exp =
          *rows.statistic(op.log_sum_exp.as<float>(), {row / s.queries, h, 0}, row % s.queries);
      sum -= static_cast<double>(std::exp(sink - log_sum_exp)) * static_cast<double>(dots[i]);
    }
  }
  return sum;
}

}  // namespace

void cpu_attention_sinks_backward(const KernelContext& context, const AttentionSinksBackward& op) {
  const HeadRows rows(op.shape, op.out.dtype);
  rows.check(op.out, op.log_sum_exp);
  rows.check(op.dout, op.log_sum_exp);
  rows.check_sinks(op.sinks);
  TERRACE_CHECK_EQ(op.dsinks.elements(), op.shape.heads);
  context.workers->parallel_for(op.shape.heads, [&](std::int64_t h, int) {
    float& target = op.dsinks.as<float>()[h];
    const float before = op.mode == GradientMode::kAssign ? 0.0F : target;
    target = before + static_cast<float>(sum_of_head(op, rows, h));
  });
}

}  // namespace terrace
