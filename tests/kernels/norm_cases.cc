#include <fmt/format.h>

#include <cmath>

#include "tests/kernels/norm_bounds.h"
#include "tests/kernels/op_case.h"

// The layer norm, with a bias and without. Bounds: norm_bounds.h.
namespace terrace::test {
namespace {

struct NormShape {
  std::int64_t R, C;
};

// Widths for every number of threads that may share a row, for elements of 16 and of 32 bits, with
// whole packs and without, and more rows than blocks share at once.
constexpr NormShape kNormShapes[] = {{1, 1},     {37, 100},  {5, 64},   {130, 33}, {2, 500},
                                     {9, 764},   {3, 768},   {2, 1000}, {3, 1025}, {2, 1028},
                                     {2, 2048},  {2200, 16}, {2, 3000}, {2, 5000}, {1, 8200},
                                     {3, 16400}, {1, 32768}};

// The statistics of rows of x in fp32, as a forward would have left them.
struct Statistics {
  HostTensor mean, rstd;
};

Statistics statistics_of(const HostTensor& x, const NormShape& s) {
  Statistics statistics{HostTensor(DType::kF32, shape(s.R)), HostTensor(DType::kF32, shape(s.R))};
  for (std::int64_t r = 0; r < s.R; ++r) {
    double mean = 0;
    for (std::int64_t c = 0; c < s.C; ++c) mean += x.at(r * s.C + c);
    mean /= static_cast<double>(s.C);
    double squares = 0;
    for (std::int64_t c = 0; c < s.C; ++c) squares += std::pow(x.at(r * s.C + c) - mean, 2);
    statistics.mean.set(r, mean);
    statistics.rstd.set(r, 1 / std::sqrt(squares / static_cast<double>(s.C) + 1e-5));
  }
  return statistics;
}

struct LayerCase {
  NormShape s;
  bool with_bias = true, with_residual = false;
  Rounding rounding;
};

Values backward_bounds(const LayerCase& k, const Values& in, const Values& want) {
  const NormShape& s = k.s;
  Values bounds(want.size());
  for (std::size_t i = 1; i < bounds.size(); ++i) bounds[i].assign(s.C, 0.0);
  for (std::int64_t r = 0; r < s.R; ++r) {
    const double* const dy = &in[0][r * s.C];
    const NormBackwardRow row({dy, &in[1][r * s.C], in[2].data(), in[4][r], in[3][r], 0.0}, s.C);
    for (std::int64_t c = 0; c < s.C; ++c) {
      const double residual = k.with_residual ? std::abs(in.back()[r * s.C + c]) : 0.0;
      const double sum = slack_units(s.C) * row.size(c, true) + kUnitF32 * residual;
      bounds[0].push_back(sum + k.rounding.of(std::abs(want[0][r * s.C + c]) + sum));
      bounds[1][c] += slack_units(s.R) * row.normed(c) * std::abs(dy[c]);
      if (k.with_bias) bounds[2][c] += slack_units(s.R) * std::abs(dy[c]);
    }
  }
  return bounds;
}

std::vector<HostTensor> backward_inputs(DType compute, const LayerCase& k, Random& random) {
  const Shape rows = shape(k.s.R, k.s.C);
  std::vector<HostTensor> inputs;
  inputs.push_back(HostTensor::random(compute, rows, random));       // dy
  inputs.push_back(HostTensor::random(compute, rows, random, 3.0));  // x
  inputs.push_back(HostTensor::random(compute, shape(k.s.C), random, 2.0));
  const Statistics statistics = statistics_of(inputs[1], k.s);
  inputs.push_back(statistics.rstd);
  inputs.push_back(statistics.mean);
  if (k.with_residual) inputs.push_back(HostTensor::random(compute, rows, random));
  return inputs;
}

void use_norm_workspace(OpCase& c, const NormShape& s) {
  c.workspace_bytes = [s](const KernelTable& table, const Views&, const Views&, GradientMode,
                          int workers) { return table.norm_backward_workspace(s.R, s.C, workers); };
}

OpCase layer_forward_case(DType compute, const NormShape& s, bool with_bias, Random& random) {
  OpCase c;
  c.name = fmt::format("layer_norm_forward R={} C={} bias={}", s.R, s.C, with_bias);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random, 3.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.C), random, 2.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.C), random));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.C)},
               {.dtype = DType::kF32, .shape = shape(s.R)},
               {.dtype = DType::kF32, .shape = shape(s.R)}};
  set_op(c, &KernelTable::layer_norm_forward,
         [with_bias](const Views& in, const Views& out, GradientMode) {
           return LayerNormForward{.x = in[0],
                                   .weight = in[1],
                                   .bias = with_bias ? in[2] : TensorView{},
                                   .y = out[0],
                                   .mean = out[1],
                                   .rstd = out[2]};
         });
  c.bounds = [s, with_bias, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(3);
    for (std::int64_t r = 0; r < s.R; ++r) {
      double size = 0;
      for (std::int64_t i = 0; i < s.C; ++i) size += std::abs(in[0][r * s.C + i]);
      const double mean_error = slack_units(s.C) * size / static_cast<double>(s.C);
      // The mean's error changes the variance only in the second order, by its square.
      const double rstd = want[2][r];
      const double statistic = rstd_error(s.C) + std::pow(mean_error * rstd, 2);
      for (std::int64_t i = r * s.C; i < (r + 1) * s.C; ++i) {
        const double weight = std::abs(in[1][i % s.C]);
        const double normed = std::abs(in[0][i] - want[1][r]) * rstd;
        const double bias = with_bias ? std::abs(in[2][i % s.C]) : 0.0;
        const double sum = weight * (mean_error * rstd + statistic * normed) + kUnitF32 * bias;
        bounds[0].push_back(sum + rounding.of(std::abs(want[0][i]) + sum));
      }
      bounds[1].push_back(mean_error);
      bounds[2].push_back(statistic * rstd);
    }
    return bounds;
  };
  return c;
}

LayerNormBackward backward_op(const LayerCase& k, const Views& in, const Views& out,
                              GradientMode mode) {
  return {.dy = in[0],
          .x = in[1],
          .weight = in[2],
          .mean = in[4],
          .rstd = in[3],
          .dresidual = k.with_residual ? in[5] : TensorView{},
          .dx = out[0],
          .dweight = out[1],
          .dbias = k.with_bias ? out[2] : TensorView{},
          .mode = mode};
}

OpCase layer_backward_case(DType compute, const LayerCase& k, Random& random) {
  OpCase c;
  c.name = fmt::format("layer_norm_backward R={} C={} bias={} residual={}", k.s.R, k.s.C,
                       k.with_bias, k.with_residual);
  c.inputs = backward_inputs(compute, k, random);
  c.outputs.push_back({compute, shape(k.s.R, k.s.C)});
  c.outputs.push_back({DType::kF32, shape(k.s.C), OutputKind::kGradient});
  if (k.with_bias) c.outputs.push_back({DType::kF32, shape(k.s.C), OutputKind::kGradient});
  set_op(c, &KernelTable::layer_norm_backward,
         [k](const Views& in, const Views& out, GradientMode mode) {
           return backward_op(k, in, out, mode);
         });
  use_norm_workspace(c, k.s);
  c.bounds = [k](const Values& in, const Values& want) { return backward_bounds(k, in, want); };
  return c;
}

// dresidual in the same memory as dx must give the bits of dresidual elsewhere.
OpCase layer_backward_in_place_case(DType compute, const LayerCase& k, Random& random) {
  OpCase c = layer_backward_case(compute, k, random);
  c.name += " in place";
  c.outputs[0].kind = OutputKind::kInPlace;
  c.outputs[0].same_as = 5;
  set_op(c, &KernelTable::layer_norm_backward,
         [k](const Views& in, const Views& out, GradientMode mode) {
           LayerNormBackward op = backward_op(k, in, out, mode);
           op.dresidual = out[0];
           return op;
         });
  use_norm_workspace(c, k.s);
  return c;
}

std::vector<OpCase> layer_norm_cases(DType compute) {
  Random random(2);
  std::vector<OpCase> cases;
  for (const NormShape& s : kNormShapes) {
    LayerCase k{.s = s, .rounding = rounding_to(compute)};
    cases.push_back(layer_forward_case(compute, s, true, random));
    cases.push_back(layer_backward_case(compute, k, random));
    k.with_residual = true;
    cases.push_back(layer_backward_case(compute, k, random));
    cases.push_back(layer_backward_in_place_case(compute, k, random));
    if (s.C > 1028) continue;
    k.with_bias = false;
    cases.push_back(layer_forward_case(compute, s, false, random));
    cases.push_back(layer_backward_case(compute, k, random));
  }
  return cases;
}

}  // namespace

std::vector<OpCase> norm_cases(DType compute) {
  std::vector<OpCase> cases = layer_norm_cases(compute);
  for (OpCase& rms : rms_norm_cases(compute)) cases.push_back(std::move(rms));
  return cases;
}

}  // namespace terrace::test
