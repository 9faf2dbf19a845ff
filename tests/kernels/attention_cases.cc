#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/reference/reference_kernels.h"
#include "tests/kernels/op_case.h"

// First-order rounding bounds, u the unit roundoff of fp32. A score, a sum of D products, is off by
// at most s = (D+3) u scale sum|q||k|; its distance d to the row's largest score or log-sum-exp by
// 2 s + 2 u (|score| + |other|); exp adds kExpUnits u. So a softmax weight has a relative error of
// e = that + kExpUnits u before, and 2 e + (T+2) u after the division by the sum. Stored results
// are rounded to the compute type, and so may be weights and score gradients that enter a product
// (kernels/kernel_table.h): by what a rounding
// to that type changes of each.
namespace terrace::test {
namespace {

constexpr AttentionShape kAttentionShapes[] = {
    {.batch = 1, .sequence = 1, .heads = 1, .key_value_heads = 1, .head_width = 32},
    {.batch = 2, .sequence = 17, .heads = 4, .key_value_heads = 2, .head_width = 32},
    {.batch = 1, .sequence = 130, .heads = 3, .key_value_heads = 1, .head_width = 64},
    {.batch = 3, .sequence = 17, .heads = 2, .key_value_heads = 2, .head_width = 64},
    {.batch = 1, .sequence = 67, .heads = 2, .key_value_heads = 1, .head_width = 20},
    {.batch = 1, .sequence = 70, .heads = 2, .key_value_heads = 1, .head_width = 128}};

// So long that the CPU takes several panels of keys, and shares a head's queries among tasks.
constexpr AttentionShape kLongShapes[] = {
    {.batch = 1, .sequence = 1030, .heads = 2, .key_value_heads = 1, .head_width = 20}};

// Such as cuDNN takes: heads of a multiple of 8, and a multiple of 4 rows for them all.
constexpr AttentionShape kLibraryShapes[] = {
    {.batch = 2, .sequence = 256, .heads = 4, .key_value_heads = 4, .head_width = 64},
    {.batch = 1, .sequence = 300, .heads = 6, .key_value_heads = 2, .head_width = 64},
    {.batch = 2, .sequence = 134, .heads = 4, .key_value_heads = 2, .head_width = 128},
    {.batch = 1, .sequence = 512, .heads = 8, .key_value_heads = 8, .head_width = 40}};

double scale_of(const AttentionShape& s) {
  return static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_width))));
}

// Index arithmetic of one (query, key) pair in qkv, out and log_sum_exp.
struct Pair {
  const AttentionShape& s;
  std::int64_t b, h, i, j;

  std::int64_t head(std::int64_t t, std::int64_t index) const {
    return ((b * s.sequence + t) * (s.heads + 2 * s.key_value_heads) + index) * s.head_width;
  }
  std::int64_t group() const { return h / (s.heads / s.key_value_heads); }
  std::int64_t query() const { return head(i, h); }
  std::int64_t key() const { return head(j, s.heads + group()); }
  std::int64_t value() const { return head(j, s.heads + s.key_value_heads + group()); }
  std::int64_t out() const { return ((b * s.sequence + i) * s.heads + h) * s.head_width; }
  std::int64_t row() const { return (b * s.heads + h) * s.sequence + i; }
};

template <typename Body>
void for_each_query(const AttentionShape& s, Body&& body) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.sequence; ++i) body(Pair{s, b, h, i, 0});
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

// The error of exp(score - other), relative.
double weight_error(const AttentionShape& s, const Product& qk, double other) {
  const double scale = scale_of(s);
  const double score = 2 * units(s.head_width + 3) * scale * qk.size;
  return score + 2 * kUnitF32 * (std::abs(scale * qk.sum) + std::abs(other)) + kExpUnits * kUnitF32;
}

Values forward_bounds(const AttentionShape& s, const Rounding& rounding, const Values& in,
                      const Values& want) {
  Values bounds = {std::vector<double>(want[0].size()), std::vector<double>(want[1].size())};
  const std::vector<double>& qkv = in[0];
  const std::int64_t D = s.head_width;
  for_each_query(s, [&](Pair at) {
    const double log_sum_exp = want[1][at.row()];
    double worst = 0;
    std::vector<double> size(D, 0.0);
    std::vector<double> values(D, 0.0);
    for (at.j = 0; at.j <= at.i; ++at.j) {
      const Product qk = product(&qkv[at.query()], &qkv[at.key()], D);
      worst = std::max(worst, weight_error(s, qk, log_sum_exp));
      const double weight = std::exp(scale_of(s) * qk.sum - log_sum_exp);
      for (std::int64_t d = 0; d < D; ++d) {
        size[d] += weight * std::abs(qkv[at.value() + d]);
        values[d] += std::abs(qkv[at.value() + d]);
      }
    }
    const double error = 2 * (worst + units(at.i + 3));
    for (std::int64_t d = 0; d < D; ++d) {
      const double sum = error * size[d] + rounding.unit * size[d] + rounding.absolute * values[d];
      bounds[0][at.out() + d] = sum + rounding.of(std::abs(want[0][at.out() + d]) + sum);
    }
    bounds[1][at.row()] = error + kExpUnits * kUnitF32 * std::abs(log_sum_exp);
  });
  return bounds;
}

// What query heads give to the gradients of their group's keys and values, for kernels that round
// it before they add it up: [B, H, T, D].
struct HeadParts {
  explicit HeadParts(const AttentionShape& s)
      : keys(static_cast<std::size_t>(s.batch * s.heads * s.sequence * s.head_width)),
        values(keys.size()) {}

  static std::int64_t at(const Pair& pair) {
    return ((pair.b * pair.s.heads + pair.h) * pair.s.sequence + pair.j) * pair.s.head_width;
  }
  void add_to(std::vector<double>& bound, const AttentionShape& s, const Rounding& rounding) const {
    for_each_query(s, [&](Pair pair) {
      pair.j = pair.i;
      for (std::int64_t d = 0; d < s.head_width; ++d) {
        bound[pair.key() + d] += rounding.of(std::abs(keys[at(pair) + d]));
        bound[pair.value() + d] += rounding.of(std::abs(values[at(pair) + d]));
      }
    });
  }

  std::vector<double> keys, values;
};

// dscore = weight (dout.v - dout.out): each part is a sum of D products.
Values backward_bounds(const AttentionShape& s, const Rounding& rounding, GroupSums group_sums,
                       const Values& in, const Values& want) {
  Values bounds = {std::vector<double>(want[0].size(), 0.0)};
  std::vector<double>& bound = bounds[0];
  const std::vector<double>& qkv = in[0];
  const std::vector<double>& out = in[1];
  const std::vector<double>& log_sum_exp = in[2];
  const std::vector<double>& dout = in[3];
  const std::int64_t D = s.head_width;
  const std::int64_t terms = s.sequence * (s.heads / s.key_value_heads) + 4;
  HeadParts parts(s);
  for_each_query(s, [&](Pair at) {
    const Product mean = product(&dout[at.out()], &out[at.out()], D);
    for (at.j = 0; at.j <= at.i; ++at.j) {
      const Product qk = product(&qkv[at.query()], &qkv[at.key()], D);
      const Product dweight = product(&dout[at.out()], &qkv[at.value()], D);
      const double weight = std::exp(scale_of(s) * qk.sum - log_sum_exp[at.row()]);
      const double error = weight_error(s, qk, log_sum_exp[at.row()]) + units(terms);
      const double inexact = (error + units(D + 4)) * (dweight.size + mean.size);
      const double rounded = rounding.unit * (std::abs(dweight.sum - mean.sum) + inexact);
      const double dscore = scale_of(s) * weight * (inexact + rounded) + rounding.absolute;
      const double exact = scale_of(s) * weight * (dweight.sum - mean.sum);
      for (std::int64_t d = 0; d < D; ++d) {
        bound[at.query() + d] += dscore * std::abs(qkv[at.key() + d]);
        bound[at.key() + d] += dscore * std::abs(qkv[at.query() + d]);
        bound[at.value() + d] +=
            (weight * error + rounding.of(weight)) * std::abs(dout[at.out() + d]);
        parts.keys[HeadParts::at(at) + d] += exact * qkv[at.query() + d];
        parts.values[HeadParts::at(at) + d] += weight * dout[at.out() + d];
      }
    }
  });
  const bool has_parts = s.heads != s.key_value_heads && group_sums == GroupSums::kRounded;
  if (has_parts) parts.add_to(bound, s, rounding);
  for (std::size_t i = 0; i < bound.size(); ++i)
    bound[i] += rounding.of(std::abs(want[0][i]) + bound[i]);
  return bounds;
}

OpCase forward_case(DType compute, const AttentionShape& s, double size, Random& random) {
  OpCase c;
  c.name = fmt::format("attention_forward B={} T={} H={} G={} D={} size={}", s.batch, s.sequence,
                       s.heads, s.key_value_heads, s.head_width, size);
  const std::int64_t R = s.batch * s.sequence;
  const std::int64_t width = (s.heads + 2 * s.key_value_heads) * s.head_width;
  c.inputs.push_back(HostTensor::random(compute, shape(R, width), random, size));
  c.outputs = {{.dtype = compute, .shape = shape(R, s.heads * s.head_width)},
               {.dtype = DType::kF32, .shape = shape(s.batch, s.heads, s.sequence)}};
  set_op(c, &KernelTable::attention_forward, &KernelTable::attention_forward_workspace,
         [s](const Views& in, const Views& out, GradientMode) {
           return AttentionForward{.shape = s,
                                   .qkv = in[0],
                                   .out = out[0],
                                   .log_sum_exp = out[1],
                                   .scale = static_cast<float>(scale_of(s))};
         });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return forward_bounds(s, rounding, in, want);
  };
  return c;
}

// Out and log_sum_exp are the reference's, so that only the backward is judged.
OpCase backward_case(DType compute, const OpCase& forward, const AttentionShape& s,
                     GroupSums group_sums, Random& random) {
  OpCase c;
  c.name = "backward of " + forward.name;
  c.inputs.push_back(forward.inputs[0]);
  for (const HostTensor& result : run_case(reference_kernels(), forward, false, {})) {
    c.inputs.push_back(result);
  }
  c.inputs.push_back(HostTensor::random(compute, c.inputs[1].view().shape, random));
  c.outputs = {{.dtype = compute, .shape = c.inputs[0].view().shape}};
  set_op(c, &KernelTable::attention_backward, &KernelTable::attention_backward_workspace,
         [s](const Views& in, const Views& out, GradientMode) {
           return AttentionBackward{.shape = s,
                                    .qkv = in[0],
                                    .out = in[1],
                                    .log_sum_exp = in[2],
                                    .dout = in[3],
                                    .dqkv = out[0],
                                    .scale = static_cast<float>(scale_of(s))};
         });
  c.bounds = [s, group_sums, rounding = rounding_to(compute)](const Values& in,
                                                              const Values& want) {
    return backward_bounds(s, rounding, group_sums, in, want);
  };
  return c;
}

struct RopeShape {
  std::int64_t R, T, heads, D, first, count;
};

constexpr RopeShape kRopeShapes[] = {
    {1, 1, 1, 32, 0, 1}, {34, 17, 6, 32, 0, 4}, {34, 17, 6, 64, 4, 1}, {130, 130, 3, 20, 1, 2}};

Values rope_bounds(const RopeShape& s, const Rounding& rounding, const Values& in,
                   const Values& want) {
  Values bounds = {std::vector<double>(want[0].size(), 0.0)};
  const std::int64_t half = s.D / 2;
  for (std::int64_t r = 0; r < s.R; ++r) {
    for (std::int64_t h = s.first; h < s.first + s.count; ++h) {
      const std::int64_t at = (r * s.heads + h) * s.D;
      for (std::int64_t d = 0; d < s.D; ++d) {
        const double* angles = &in[1][r % s.T * s.D + d % half];
        const double other = in[0][at + (d + half) % s.D];
        const double sum = 2.01 * kUnitF32 *
                           (std::abs(in[0][at + d] * angles[0]) + std::abs(other * angles[half]));
        bounds[0][at + d] = sum + rounding.of(std::abs(want[0][at + d]) + sum);
      }
    }
  }
  return bounds;  // 0 for the heads that are not rotated: they keep their bits
}

OpCase rope_case(DType compute, const RopeShape& s, bool inverse, Random& random) {
  OpCase c;
  c.name = fmt::format("rope R={} T={} D={} first={} count={} inverse={}", s.R, s.T, s.D, s.first,
                       s.count, inverse);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.heads * s.D), random));
  c.inputs.emplace_back(DType::kF32, shape(s.T, s.D));
  for (std::int64_t i = 0; i < s.T * s.D / 2; ++i) {
    const double angle = 3 * random.uniform();
    const std::int64_t at = i / (s.D / 2) * s.D + i % (s.D / 2);
    c.inputs[1].set(at, std::cos(angle));
    c.inputs[1].set(at + s.D / 2, std::sin(angle));
  }
  c.outputs = {{.dtype = compute,
                .shape = c.inputs[0].view().shape,
                .kind = OutputKind::kInPlace,
                .same_as = 0}};
  set_op(c, &KernelTable::rope, [s, inverse](const Views& in, const Views& out, GradientMode) {
    return Rope{.qkv = out[0],
                .table = in[1],
                .sequence = s.T,
                .head_width = s.D,
                .first_head = s.first,
                .heads = s.count,
                .inverse = inverse};
  });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return rope_bounds(s, rounding, in, want);
  };
  return c;
}

std::vector<OpCase> cases_of(std::span<const AttentionShape> shapes, DType compute,
                             GroupSums group_sums = GroupSums::kExact) {
  Random random(3);
  std::vector<OpCase> cases;
  for (const AttentionShape& s : shapes) {
    for (const double size : {1.0, 6.0}) {  // flat weights, and weights on few keys
      cases.push_back(forward_case(compute, s, size, random));
      cases.push_back(backward_case(compute, cases.back(), s, group_sums, random));
    }
  }
  return cases;
}

}  // namespace

std::vector<OpCase> attention_cases(DType compute, GroupSums group_sums) {
  return cases_of(kAttentionShapes, compute, group_sums);
}
std::vector<OpCase> attention_cases(DType compute) {
  return attention_cases(compute, GroupSums::kExact);
}
std::vector<OpCase> long_attention_cases(DType compute) { return cases_of(kLongShapes, compute); }

std::vector<OpCase> library_attention_cases(DType compute, GroupSums group_sums) {
  return cases_of(kLibraryShapes, compute, group_sums);
}

std::vector<OpCase> rope_cases(DType compute) {
  Random random(4);
  std::vector<OpCase> cases;
  for (const RopeShape& s : kRopeShapes) {
    for (const bool inverse : {false, true}) {
      cases.push_back(rope_case(compute, s, inverse, random));
    }
  }
  return cases;
}

}  // namespace terrace::test
