#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/kernels/op_case.h"

// An attention op of the tests: its shape and rule, how its matrices lie, and how far from the
// fp64 reference its results may be.
namespace terrace::test {

// Where a matrix of heads lies: columns of an input or output of a case.
struct HeadColumns {
  std::size_t tensor = 0;
  std::int64_t first = 0, stride = 0;

  std::int64_t at(std::int64_t row, std::int64_t head, std::int64_t D) const {
    return row * stride + first + head * D;
  }
};

// The columns of queries, keys and values, or of their gradients.
struct HeadLayout {
  HeadColumns q, k, v;
};

struct AttentionProblem {
  AttentionShape shape;
  double size = 1.0;  // of the largest inputs
  std::int64_t window = 0;
  double soft_cap = 0;
  // Keys of a document; in sequence b a document has some more. 0: a sequence is one document.
  std::int64_t document = 0;
  // Columns that are in no head, when queries, keys and values have separate matrices; 0: one
  // matrix has all heads.
  std::int64_t padding = 0;
  double sink_size = 0;  // of the largest sinks; 0: there are none

  bool has_sinks() const { return sink_size > 0; }
  bool is_apart() const { return padding > 0; }
  std::int64_t query_rows() const { return shape.batch * shape.queries; }
  std::int64_t key_rows() const { return shape.batch * shape.keys; }
  std::int64_t query_columns() const { return shape.heads * shape.head_width; }
  std::int64_t key_columns() const { return shape.key_value_heads * shape.head_width; }

  // Returns the layout. Tensors are numbered from `tensor` on. Separate matrices have a stride
  // each.
  HeadLayout layout(std::size_t tensor, std::int64_t q, std::int64_t k, std::int64_t v) const {
    if (!is_apart()) {
      const std::int64_t all = query_columns() + 2 * key_columns();
      return {{tensor, 0, all},
              {tensor, query_columns(), all},
              {tensor, query_columns() + key_columns(), all}};
    }
    return {{tensor, padding, query_columns() + q * padding},
            {tensor + 1, 0, key_columns() + k * padding},
            {tensor + 2, 2 * padding, key_columns() + v * padding}};
  }
  HeadLayout inputs() const { return layout(0, 1, 2, 3); }
  HeadLayout gradients(std::size_t tensor) const { return layout(tensor, 3, 1, 2); }
  std::size_t matrices() const { return is_apart() ? 3 : 1; }
  // Returns the index of the sinks among the inputs. Where there are sinks, the first keys of
  // documents are before them, also where a sequence is one document.
  std::size_t sinks() const { return matrices() + 1; }

  // Returns the scale, rounded to fp32 as the op has it.
  double scale() const {
    return static_cast<double>(
        static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_width))));
  }
  std::int64_t first_key_of_document(std::int64_t b, std::int64_t position) const {
    if (document == 0) return 0;
    const std::int64_t length = document + 3 * b;
    return position / length * length;
  }
};

// The bounds of the forward's outputs and of the backward's gradients. They are first-order
// rounding bounds, with u the unit roundoff of fp32:
//
// A product q.k, a sum of D products, is off by at most (D+3) u sum|q||k|, and a score by scale
// times that. tanh has no slope above 1, so a capped score is off by the same amount, plus 3 u of
// the score before the cap and kExpUnits u of itself. Its distance to the row's largest score or
// log-sum-exp is off by twice that and 2 u (|score| + |other|); exp adds kExpUnits u. So a softmax
// weight has a relative error of e = that + kExpUnits u before, and 2 e + (T+2) u after the
// division by the sum. The factor 1 - t^2 of a capped score's gradient, t = score / cap, is off by
// 2 |t| d + d^2 + 6 u, where d is the error of t. Stored results are rounded to the compute type,
// and weights and score gradients that enter a product may be too (kernels/kernel_table.h): each
// may then change by one rounding to that type. A sink is a score without a product, which may be
// divided by the scale and multiplied by it again. A weight below the least normal number may be 0.
Values attention_forward_bounds(const AttentionProblem& problem, const Rounding& rounding,
                                const Values& in, const Values& want);

// The bounds of the gradient of sinks, from the inputs sinks, out, log_sum_exp and dout. A term is
// the product of a weight exp(sink - log_sum_exp) and a sum of D products.
Values sinks_backward_bounds(const AttentionProblem& problem, const Values& in);

// The bounds of a backward whose inputs are the forward's inputs and then out, log_sum_exp and
// dout.
struct BackwardBounds {
  AttentionProblem problem;
  Rounding rounding;
  GroupSums group_sums;
  std::size_t out = 0;  // the index of `out` among the inputs

  Values operator()(const Values& in, const Values& want) const;
};

}  // namespace terrace::test
