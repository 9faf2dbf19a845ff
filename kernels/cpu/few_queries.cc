#include "kernels/cpu/few_queries.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/logit_rows.h"
#include "kernels/cpu/row_products.h"

// Letters: H query heads, G key-value heads, D head width.
namespace terrace {
namespace {

// How the work is cut into tasks: a task is one query position of all the heads that share a
// key-value head.
struct QueriesPlan {
  explicit QueriesPlan(const AttentionForward& op)
      : group(op.shape.heads / op.shape.key_value_heads),
        tasks(op.shape.batch * op.shape.key_value_heads * op.shape.queries) {
    scores = own.add(static_cast<std::size_t>(group * op.shape.keys) * sizeof(float));
    output = own.add(static_cast<std::size_t>(group * op.shape.head_width) * sizeof(float));
    sums = own.add(static_cast<std::size_t>(group) * sizeof(double));
  }

  int workers_of(int workers, const AttentionForward& op) const {
    const std::int64_t rows = 2 * op.shape.batch * op.shape.keys * op.shape.key_value_heads;
    const std::int64_t bytes =
        rows * op.shape.head_width * static_cast<std::int64_t>(size_of(op.q.dtype));
    return static_cast<int>(std::min<std::int64_t>(workers_of_bytes(workers, bytes), tasks));
  }

  std::int64_t group;  // query heads of a key-value head
  std::int64_t tasks;
  WorkspaceLayout own;  // of a worker
  std::size_t scores = 0, output = 0, sums = 0;
};

// The sum by which a row's exponentials are divided, and its logarithm with the maximum added.
struct ExpSum {
  double divisor, log_sum_exp;
};

// Returns the sums of a row of head h, with the head's sink where there is one.
ExpSum with_sink(const AttentionRule& rule, std::int64_t h, const ExpRow& exps) {
  const double max = static_cast<double>(exps.max);
  if (rule.sinks.empty()) return {exps.sum, max + std::log(exps.sum)};
  const double sink = static_cast<double>(number_at(rule.sinks, h));
  const double most = std::max(max, sink);
  const double sum = exps.sum * std::exp(max - most) + std::exp(sink - most);
  return {sum * std::exp(most - max), most + std::log(sum)};
}

// Computes query `t` of the heads of a group, of which `head` is the first.
void attend_group(const AttentionForward& op, const QueriesPlan& plan, const Head& head,
                  std::int64_t t, std::span<std::byte> own) {
  const HeadRows rows(op.shape, op.q.dtype);
  const std::int64_t D = op.shape.head_width;
  FirstKeys first_keys(op.shape, op.rule);
  first_keys.look(head.b, t, 1);
  const std::int64_t first = first_keys.first();
  const std::int64_t count = op.shape.keys - op.shape.queries + t + 1 - first;
  float* scores = region_at<float>(own, plan.scores, plan.group * op.shape.keys);
  float* output = region_at<float>(own, plan.output, plan.group * D);
  double* sums = region_at<double>(own, plan.sums, plan.group);
  dot_rows({.dtype = rows.dtype(),
            .a = rows.query(op.q, head, t),
            .b = rows.key(op.k, head, first),
            .a_stride = D,
            .b_stride = op.k.stride,
            .a_rows = plan.group,
            .b_rows = count,
            .depth = D,
            .sums = scores,
            .sums_stride = count});
  map_logits(LogitMap(op.rule.scale, op.rule.soft_cap), scores, plan.group * count);
  for (std::int64_t r = 0; r < plan.group; ++r) {
    const ExpRow exps = exponentiate_row(scores + r * count, count);
    const ExpSum sum = with_sink(op.rule, head.h + r, exps);
    sums[r] = sum.divisor;
    *rows.statistic(op.log_sum_exp.as<float>(), {head.b, head.h + r, head.g}, t) =
        static_cast<float>(sum.log_sum_exp);
  }
  mix_rows({.dtype = rows.dtype(),
            .weights = scores,
            .b = rows.key(op.v, head, first),
            .weights_stride = count,
            .b_stride = op.v.stride,
            .rows = plan.group,
            .b_rows = count,
            .width = D,
            .sums = output});
  for (std::int64_t r = 0; r < plan.group; ++r) {
    scale_row(output + r * D, static_cast<float>(1 / sums[r]), D,
              rows.out(op.out.data, {head.b, head.h + r, head.g}, t), rows.dtype());
  }
}

}  // namespace

bool is_of_few_queries(const AttentionShape& shape) {
  return shape.queries < shape.keys && shape.queries <= kFewQueries;
}

void few_queries_attention(const KernelContext& context, const AttentionForward& op) {
  TERRACE_CHECK(is_of_few_queries(op.shape));
  const HeadRows rows(op.shape, op.q.dtype);
  rows.check(op.q, op.k, op.v);
  rows.check(op.out, op.log_sum_exp);
  rows.check_sinks(op.rule.sinks);
  const QueriesPlan plan(op);
  const std::int64_t Q = op.shape.queries;
  const std::int64_t G = op.shape.key_value_heads;
  const int workers = plan.workers_of(context.workers->threads(), op);
  context.workers->parallel_for(plan.tasks, workers, [&](std::int64_t task, int worker) {
    const std::int64_t g = task / Q % G;
    attend_group(op, plan, {task / (Q * G), g * plan.group, g}, task % Q,
                 worker_share(context, 0, workers, worker));
  });
}

std::size_t few_queries_workspace(const AttentionForward& op, int workers) {
  const QueriesPlan plan(op);
  return plan.own.total_bytes() * static_cast<std::size_t>(plan.workers_of(workers, op));
}

}  // namespace terrace
