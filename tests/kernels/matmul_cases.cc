#include <fmt/format.h>

#include <cmath>

#include "tests/kernels/op_case.h"

// A sum of n products in fp32, in any order, fused or not, is off by at most n u sum|a||b| (u the
// unit roundoff, to first order; Higham, "Accuracy and stability of numerical algorithms", 3.1). A
// margin of two terms covers the second order and the bias; storing adds one rounding to the
// compute type.
namespace terrace::test {
namespace {

struct MatmulShape {
  std::int64_t R, N, K;
};

constexpr MatmulShape kMatmulShapes[] = {{1, 1, 1},
                                         {37, 75, 100},
                                         {1, 129, 64},
                                         {130, 3, 7},
                                         {64, 64, 96},
                                         {301, 290, 33},
                                         // Few rows, whose weight is read where it lies.
                                         {1, 70, 300},
                                         {3, 67, 129},
                                         {8, 33, 75}};

// Returns the sum over k of |a(k)| |b(k)|.
template <typename A, typename B>
double magnitude(std::int64_t count, A&& a, B&& b) {
  double sum = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += std::abs(a(k)) * std::abs(b(k));
  return sum;
}

double sum_bound(std::int64_t terms, double magnitude) {
  return static_cast<double>(terms + 2) * kUnitF32 * magnitude;
}

OpCase forward_case(DType compute, const MatmulShape& s, bool with_bias, Random& random) {
  OpCase c;
  c.name = fmt::format("matmul_forward R={} N={} K={} bias={}", s.R, s.N, s.K, with_bias);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.K), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.N, s.K), random));
  if (with_bias) c.inputs.push_back(HostTensor::random(compute, shape(s.N), random));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.N)}};
  set_op(c, &KernelTable::matmul_forward, &KernelTable::matmul_forward_workspace,
         [with_bias](const Views& in, const Views& out, GradientMode) {
           return MatmulForward{
               .x = in[0], .weight = in[1], .bias = with_bias ? in[2] : TensorView{}, .y = out[0]};
         });
  c.bounds = [s, with_bias, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::int64_t i = 0; i < s.R * s.N; ++i) {
      const double* x = &in[0][i / s.N * s.K];
      const double* weight = &in[1][i % s.N * s.K];
      const double terms =
          magnitude(s.K, [x](auto k) { return x[k]; }, [weight](auto k) { return weight[k]; });
      const double sum = sum_bound(s.K, terms + (with_bias ? std::abs(in[2][i % s.N]) : 0.0));
      bounds[0].push_back(sum + rounding.of(std::abs(want[0][i]) + sum));
    }
    return bounds;
  };
  return c;
}

OpCase backward_input_case(DType compute, const MatmulShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("matmul_backward_input R={} N={} K={}", s.R, s.N, s.K);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.N), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.N, s.K), random));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.K)}};
  set_op(c, &KernelTable::matmul_backward_input, &KernelTable::matmul_backward_input_workspace,
         [](const Views& in, const Views& out, GradientMode) {
           return MatmulBackwardInput{.dy = in[0], .weight = in[1], .dx = out[0]};
         });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::int64_t i = 0; i < s.R * s.K; ++i) {
      const double* dy = &in[0][i / s.K * s.N];
      const double* weight = &in[1][i % s.K];
      const double sum = sum_bound(
          s.N,
          magnitude(s.N, [dy](auto n) { return dy[n]; }, [&](auto n) { return weight[n * s.K]; }));
      bounds[0].push_back(sum + rounding.of(std::abs(want[0][i]) + sum));
    }
    return bounds;
  };
  return c;
}

Values weight_bounds(const MatmulShape& s, bool with_bias, const Values& in) {
  Values bounds(with_bias ? 2 : 1);
  for (std::int64_t i = 0; i < s.N * s.K; ++i) {
    const double* dy = &in[0][i / s.K];
    const double* x = &in[1][i % s.K];
    bounds[0].push_back(sum_bound(
        s.R,
        magnitude(s.R, [&](auto r) { return dy[r * s.N]; }, [&](auto r) { return x[r * s.K]; })));
  }
  for (std::int64_t n = 0; with_bias && n < s.N; ++n) {
    const double* dy = &in[0][n];
    bounds[1].push_back(sum_bound(
        s.R, magnitude(s.R, [&](auto r) { return dy[r * s.N]; }, [](auto) { return 1.0; })));
  }
  return bounds;
}

OpCase backward_weight_case(DType compute, const MatmulShape& s, bool with_bias, Random& random) {
  OpCase c;
  c.name = fmt::format("matmul_backward_weight R={} N={} K={} bias={}", s.R, s.N, s.K, with_bias);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.N), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.K), random));
  c.outputs.push_back({DType::kF32, shape(s.N, s.K), OutputKind::kGradient});
  if (with_bias) c.outputs.push_back({DType::kF32, shape(s.N), OutputKind::kGradient});
  set_op(c, &KernelTable::matmul_backward_weight, &KernelTable::matmul_backward_weight_workspace,
         [with_bias](const Views& in, const Views& out, GradientMode mode) {
           return MatmulBackwardWeight{.dy = in[0],
                                       .x = in[1],
                                       .dweight = out[0],
                                       .dbias = with_bias ? out[1] : TensorView{},
                                       .mode = mode};
         });
  c.bounds = [s, with_bias](const Values& in, const Values&) {
    return weight_bounds(s, with_bias, in);
  };
  return c;
}

}  // namespace

std::vector<OpCase> matmul_cases(DType compute) {
  Random random(1);
  std::vector<OpCase> cases;
  for (const MatmulShape& s : kMatmulShapes) {
    for (const bool with_bias : {false, true}) {
      cases.push_back(forward_case(compute, s, with_bias, random));
      cases.push_back(backward_weight_case(compute, s, with_bias, random));
    }
    cases.push_back(backward_input_case(compute, s, random));
  }
  return cases;
}

}  // namespace terrace::test
