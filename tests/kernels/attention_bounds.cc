#include "tests/kernels/attention_problem.h"

namespace terrace::test {
namespace {

// One query of one head, with the keys [first, end) that it sees, and one of these keys.
struct Pair {
  const AttentionProblem& problem;
  HeadLayout layout;
  std::int64_t b, h, i, first, end, j;

  std::int64_t group() const { return h / (problem.shape.heads / problem.shape.key_value_heads); }
  std::int64_t query(const HeadColumns& columns) const {
    return columns.at(b * problem.shape.queries + i, h, problem.shape.head_width);
  }
  std::int64_t key(const HeadColumns& columns) const {
    return columns.at(b * problem.shape.keys + j, group(), problem.shape.head_width);
  }
  const double* q(const Values& in) const { return &in[layout.q.tensor][query(layout.q)]; }
  const double* k(const Values& in) const { return &in[layout.k.tensor][key(layout.k)]; }
  const double* v(const Values& in) const { return &in[layout.v.tensor][key(layout.v)]; }
  std::int64_t out() const {
    return ((b * problem.shape.queries + i) * problem.shape.heads + h) * problem.shape.head_width;
  }
  std::int64_t row() const { return (b * problem.shape.heads + h) * problem.shape.queries + i; }
};

template <typename Body>
void for_each_query(const AttentionProblem& problem, Body&& body) {
  const AttentionShape& s = problem.shape;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const std::int64_t position = s.keys - s.queries + i;
        std::int64_t first = problem.first_key_of_document(b, position);
        if (problem.window > 0) first = std::max(first, position - problem.window + 1);
        body(Pair{problem, problem.inputs(), b, h, i, first, position + 1, first});
      }
    }
  }
}

struct Product {
  double sum = 0, size = 0;  // of a[d] b[d], and of their absolute values
};

Product product(const double* a, const double* b, std::int64_t D) {
  Product p;
  for (std::int64_t d = 0; d < D; ++d) {
    p.sum += a[d] * b[d];
    p.size += std::abs(a[d] * b[d]);
  }
  return p;
}

// A score and its derivative with respect to q.k, and how far off each may be.
struct Score {
  double value, error, slope, slope_error;
};

Score score_of(const AttentionProblem& problem, const Product& qk) {
  const double scale = problem.scale();
  const double before = scale * qk.sum;
  const double error = units(problem.shape.head_width + 3) * scale * qk.size;
  if (problem.soft_cap == 0) return {before, error, scale, 0};
  const double cap = problem.soft_cap;
  const double bent = std::tanh(before / cap);
  const double capped_error =
      error + kUnitF32 * (3 * std::abs(before) + kExpUnits * std::abs(cap * bent));
  const double of_bent = capped_error / cap;
  const double of_slope = 2 * std::abs(bent) * of_bent + of_bent * of_bent + 6 * kUnitF32;
  return {cap * bent, capped_error, scale * (1 - bent * bent), scale * of_slope};
}

// The least normal number of fp32.
constexpr double kLeastNormal = 0x1.0p-126;

// Returns the relative error of exp(score - other).
double weight_error(const Score& score, double other) {
  return 2 * score.error + 2 * kUnitF32 * (std::abs(score.value) + std::abs(other)) +
         kExpUnits * kUnitF32;
}

// The shares of each query head in the gradients of its group's keys and values, for kernels that
// round the shares before they add them: [B, H, keys, D].
struct HeadParts {
  explicit HeadParts(const AttentionShape& s)
      : keys(static_cast<std::size_t>(s.batch * s.heads * s.keys * s.head_width)),
        values(keys.size()) {}

  static std::int64_t at(const Pair& pair) {
    const AttentionShape& s = pair.problem.shape;
    return ((pair.b * s.heads + pair.h) * s.keys + pair.j) * s.head_width;
  }
  void add_to(Values& bounds, const HeadLayout& to, const AttentionProblem& problem,
              const Rounding& rounding) const {
    for_each_query(problem, [&](Pair pair) {
      pair.j = pair.i;
      for (std::int64_t d = 0; d < problem.shape.head_width; ++d) {
        bounds[to.k.tensor][pair.key(to.k) + d] += rounding.of(std::abs(keys[at(pair) + d]));
        bounds[to.v.tensor][pair.key(to.v) + d] += rounding.of(std::abs(values[at(pair) + d]));
      }
    });
  }

  std::vector<double> keys, values;
};

// Adds the bound for rounding the results themselves, in the columns of one of the matrices.
struct StoredRows {
  std::int64_t rows, columns;

  void add_to(Values& bounds, const HeadColumns& to, const Rounding& rounding,
              const Values& want) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at = to.at(row, 0, 0) + column;
        double& bound = bounds[to.tensor][at];
        bound += rounding.of(std::abs(want[to.tensor][at]) + bound);
      }
    }
  }
};

}  // namespace

Values attention_forward_bounds(const AttentionProblem& problem, const Rounding& rounding,
                                const Values& in, const Values& want) {
  Values bounds = {std::vector<double>(want[0].size()), std::vector<double>(want[1].size())};
  const std::int64_t D = problem.shape.head_width;
  for_each_query(problem, [&](Pair at) {
    const double log_sum_exp = want[1][at.row()];
    double worst = 0;
    std::vector<double> size(D, 0.0);
    std::vector<double> values(D, 0.0);
    for (at.j = at.first; at.j < at.end; ++at.j) {
      const Score score = score_of(problem, product(at.q(in), at.k(in), D));
      worst = std::max(worst, weight_error(score, log_sum_exp));
      const double weight = std::exp(score.value - log_sum_exp);
      for (std::int64_t d = 0; d < D; ++d) {
        size[d] += weight * std::abs(at.v(in)[d]);
        values[d] += std::abs(at.v(in)[d]);
      }
    }
    if (problem.has_sinks()) {
      const double sink = in[problem.sinks()][static_cast<std::size_t>(at.h)];
      worst =
          std::max(worst, weight_error({sink, 3 * kUnitF32 * std::abs(sink), 1, 0}, log_sum_exp));
    }
    const double error = 2 * (worst + units(at.end - at.first + (problem.has_sinks() ? 3 : 2)));
    for (std::int64_t d = 0; d < D; ++d) {
      const double sum = error * size[d] + rounding.unit * size[d] +
                         (rounding.absolute + kLeastNormal) * values[d];
      bounds[0][at.out() + d] = sum + rounding.of(std::abs(want[0][at.out() + d]) + sum);
    }
    bounds[1][at.row()] = error + kExpUnits * kUnitF32 * std::abs(log_sum_exp);
  });
  return bounds;
}

Values sinks_backward_bounds(const AttentionProblem& problem, const Values& in) {
  const AttentionShape& s = problem.shape;
  std::vector<double> bounds(static_cast<std::size_t>(s.heads));
  for_each_query(problem, [&](const Pair& at) {
    const double sink = in[0][static_cast<std::size_t>(at.h)];
    const double log_sum_exp = in[2][static_cast<std::size_t>(at.row())];
    const double size = product(&in[3][at.out()], &in[1][at.out()], s.head_width).size;
    const double error = units(s.head_width + s.batch * s.queries + 6) +
                         2 * kUnitF32 * (std::abs(sink) + std::abs(log_sum_exp)) +
                         kExpUnits * kUnitF32;
    bounds[static_cast<std::size_t>(at.h)] +=
        (error * std::exp(sink - log_sum_exp) + kLeastNormal) * size;
  });
  return {bounds};
}

// dscore = slope weight (dout.v - dout.out): each part is a sum of D products.
Values BackwardBounds::operator()(const Values& in, const Values& want) const {
  Values bounds;
  for (const std::vector<double>& output : want) bounds.emplace_back(output.size(), 0.0);
  const AttentionShape& s = problem.shape;
  const HeadLayout to = problem.gradients(0);
  const std::vector<double>& log_sum_exp = in[out + 1];
  const std::int64_t D = s.head_width;
  const std::int64_t terms = s.keys * (s.heads / s.key_value_heads) + 4;
  HeadParts parts(s);
  for_each_query(problem, [&](Pair at) {
    const double* dout = &in[out + 2][at.out()];
    const Product mean = product(dout, &in[out][at.out()], D);
    double* const dquery = &bounds[to.q.tensor][at.query(to.q)];
    for (at.j = at.first; at.j < at.end; ++at.j) {
      const Score score = score_of(problem, product(at.q(in), at.k(in), D));
      const Product dweight = product(dout, at.v(in), D);
      const double weight = std::exp(score.value - log_sum_exp[at.row()]);
      const double error = weight_error(score, log_sum_exp[at.row()]) + units(terms);
      const double inexact = (error + units(D + 4)) * (dweight.size + mean.size);
      const double delta = std::abs(dweight.sum - mean.sum) + inexact;
      const double dscore =
          weight * (score.slope * (inexact + rounding.unit * delta) + score.slope_error * delta) +
          rounding.absolute + kLeastNormal * score.slope * delta;
      const double exact = score.slope * weight * (dweight.sum - mean.sum);
      double* const dkey = &bounds[to.k.tensor][at.key(to.k)];
      double* const dvalue = &bounds[to.v.tensor][at.key(to.v)];
      for (std::int64_t d = 0; d < D; ++d) {
        dquery[d] += dscore * std::abs(at.k(in)[d]);
        dkey[d] += dscore * std::abs(at.q(in)[d]);
        dvalue[d] += (weight * error + rounding.of(weight) + kLeastNormal) * std::abs(dout[d]);
        parts.keys[HeadParts::at(at) + d] += exact * at.q(in)[d];
        parts.values[HeadParts::at(at) + d] += weight * dout[d];
      }
    }
  });
  const bool has_parts = s.heads != s.key_value_heads && group_sums == GroupSums::kRounded;
  if (has_parts) parts.add_to(bounds, to, problem, rounding);
  StoredRows{problem.query_rows(), problem.query_columns()}.add_to(bounds, to.q, rounding, want);
  StoredRows{problem.key_rows(), problem.key_columns()}.add_to(bounds, to.k, rounding, want);
  StoredRows{problem.key_rows(), problem.key_columns()}.add_to(bounds, to.v, rounding, want);
  return bounds;
}

}  // namespace terrace::test
