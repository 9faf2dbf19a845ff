#include <fmt/format.h>

#include <cmath>

#include "tests/kernels/op_case.h"

// First-order rounding bounds, u the unit roundoff of fp32, t that of the compute type. A mean of C
// terms has a relative error of (C+1) u of the mean of their sizes; 1/sqrt halves the relative
// error of its argument and adds 3 u of its own. kSlack u covers the few products, quotients and
// differences around them, and all second-order terms.
namespace terrace::test {
namespace {

constexpr double kSlack = 10;

struct NormShape {
  std::int64_t R, C;
};

// Widths of every number of threads that may share a row, for elements of 16 and of 32 bits, of
// whole packs and not, and more rows than blocks share at once.
constexpr NormShape kNormShapes[] = {{1, 1},     {37, 100},  {5, 64},   {130, 33}, {2, 500},
                                     {9, 764},   {3, 768},   {2, 1000}, {3, 1025}, {2, 1028},
                                     {2, 2048},  {2200, 16}, {2, 3000}, {2, 5000}, {1, 8200},
                                     {3, 16400}, {1, 32768}};

double slack_units(std::int64_t terms) { return units(terms) + kSlack * kUnitF32; }

// The statistics of rows of x as fp32, as a forward would have left them.
struct Statistics {
  HostTensor mean, rstd;
};

Statistics statistics_of(const HostTensor& x, const NormShape& s, bool centered) {
  Statistics statistics{HostTensor(DType::kF32, shape(s.R)), HostTensor(DType::kF32, shape(s.R))};
  for (std::int64_t r = 0; r < s.R; ++r) {
    double mean = 0;
    for (std::int64_t c = 0; centered && c < s.C; ++c) mean += x.at(r * s.C + c);
    mean /= static_cast<double>(s.C);
    double squares = 0;
    for (std::int64_t c = 0; c < s.C; ++c) squares += std::pow(x.at(r * s.C + c) - mean, 2);
    statistics.mean.set(r, mean);
    statistics.rstd.set(r, 1 / std::sqrt(squares / static_cast<double>(s.C) + 1e-5));
  }
  return statistics;
}

OpCase rms_forward_case(DType compute, const NormShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("rms_norm_forward R={} C={}", s.R, s.C);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random, 3.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.C), random, 2.0));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.C)},
               {.dtype = DType::kF32, .shape = shape(s.R)}};
  set_op(c, &KernelTable::rms_norm_forward, [](const Views& in, const Views& out, GradientMode) {
    return RmsNormForward{.x = in[0], .weight = in[1], .y = out[0], .rstd = out[1]};
  });
  // y is rounded twice: the normed value, and its product with the weight.
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    const double statistic = slack_units(s.C) / 2 + kSlack / 2 * kUnitF32;
    Values bounds(2);
    for (std::int64_t i = 0; i < s.R * s.C; ++i) {
      const double relative = (statistic + 2.01 * rounding.unit) * std::abs(want[0][i]);
      const double weight = std::abs(in[1][i % s.C]);
      bounds[0].push_back(relative + rounding.absolute * (1.01 * weight + 1));
    }
    for (const double rstd : want[1]) bounds[1].push_back(statistic * rstd);
    return bounds;
  };
  return c;
}

// Bounds of dx and the sums over rows of a norm's backward. mean is 0 for the RMS norm.
class NormBackwardRow {
 public:
  NormBackwardRow(const double* dy, const double* x, const double* weight, double mean, double rstd,
                  std::int64_t width)
      : dy_(dy), x_(x), weight_(weight), mean_(mean), rstd_(rstd) {
    for (std::int64_t c = 0; c < width; ++c) {
      common_ += gradient(c) / static_cast<double>(width);
      along_ += gradient(c) * normed(c) / static_cast<double>(width);
    }
  }

  double normed(std::int64_t c) const { return std::abs((x_[c] - mean_) * rstd_); }
  // The size of the terms of dx at c: their rounding errors are proportional to it. Subtracting the
  // mean is one more rounding relative to what is left, for mean and x are given exactly.
  double size(std::int64_t c, bool centered) const {
    return rstd_ * (gradient(c) + (centered ? common_ : 0.0) + normed(c) * along_);
  }

 private:
  double gradient(std::int64_t c) const { return std::abs(dy_[c] * weight_[c]); }

  const double* dy_;
  const double* x_;
  const double* weight_;
  double mean_, rstd_;
  double common_ = 0;
  double along_ = 0;
};

struct BackwardInputs {
  NormShape s;
  bool centered, with_residual;
  Rounding rounding;
};

Values backward_bounds(const BackwardInputs& b, const Values& in, const Values& want) {
  const auto& [s, centered, with_residual, rounding] = b;
  Values bounds(centered ? 3 : 2);
  bounds[1].assign(s.C, 0.0);
  if (centered) bounds[2].assign(s.C, 0.0);
  for (std::int64_t r = 0; r < s.R; ++r) {
    const double* const dy = &in[0][r * s.C];
    const NormBackwardRow row(dy, &in[1][r * s.C], in[2].data(), centered ? in[4][r] : 0.0,
                              in[3][r], s.C);
    for (std::int64_t c = 0; c < s.C; ++c) {
      const double residual = with_residual ? std::abs(in.back()[r * s.C + c]) : 0.0;
      const double sum = slack_units(s.C) * row.size(c, centered) + kUnitF32 * residual;
      bounds[0].push_back(sum + rounding.of(std::abs(want[0][r * s.C + c]) + sum));
      // The RMS norm's normed value may be the rounded one that the forward used.
      const double normed =
          slack_units(s.R) * row.normed(c) + (centered ? 0.0 : rounding.of(row.normed(c)));
      bounds[1][c] += normed * std::abs(dy[c]);
      if (centered) bounds[2][c] += slack_units(s.R) * std::abs(dy[c]);
    }
  }
  return bounds;
}

std::vector<HostTensor> backward_inputs(DType compute, const BackwardInputs& b, Random& random) {
  const Shape rows = shape(b.s.R, b.s.C);
  std::vector<HostTensor> inputs;
  inputs.push_back(HostTensor::random(compute, rows, random));       // dy
  inputs.push_back(HostTensor::random(compute, rows, random, 3.0));  // x
  inputs.push_back(HostTensor::random(compute, shape(b.s.C), random, 2.0));
  const Statistics statistics = statistics_of(inputs[1], b.s, b.centered);
  inputs.push_back(statistics.rstd);
  inputs.push_back(statistics.mean);
  if (b.with_residual) inputs.push_back(HostTensor::random(compute, rows, random));
  return inputs;
}

void use_norm_workspace(OpCase& c, const NormShape& s) {
  c.workspace_bytes = [s](const KernelTable& table, const Views&, const Views&, GradientMode,
                          int workers) { return table.norm_backward_workspace(s.R, s.C, workers); };
}

OpCase rms_backward_case(DType compute, const NormShape& s, bool with_residual, Random& random) {
  const BackwardInputs b{s, false, with_residual, rounding_to(compute)};
  OpCase c;
  c.name = fmt::format("rms_norm_backward R={} C={} residual={}", s.R, s.C, with_residual);
  c.inputs = backward_inputs(compute, b, random);
  c.outputs.push_back({compute, shape(s.R, s.C)});
  c.outputs.push_back({DType::kF32, shape(s.C), OutputKind::kGradient});
  set_op(c, &KernelTable::rms_norm_backward,
         [with_residual](const Views& in, const Views& out, GradientMode mode) {
           return RmsNormBackward{.dy = in[0],
                                  .x = in[1],
                                  .weight = in[2],
                                  .rstd = in[3],
                                  .dresidual = with_residual ? in[5] : TensorView{},
                                  .dx = out[0],
                                  .dweight = out[1],
                                  .mode = mode};
         });
  use_norm_workspace(c, s);
  c.bounds = [b](const Values& in, const Values& want) { return backward_bounds(b, in, want); };
  return c;
}

OpCase layer_forward_case(DType compute, const NormShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("layer_norm_forward R={} C={}", s.R, s.C);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random, 3.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.C), random, 2.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.C), random));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.C)},
               {.dtype = DType::kF32, .shape = shape(s.R)},
               {.dtype = DType::kF32, .shape = shape(s.R)}};
  set_op(c, &KernelTable::layer_norm_forward, [](const Views& in, const Views& out, GradientMode) {
    return LayerNormForward{
        .x = in[0], .weight = in[1], .bias = in[2], .y = out[0], .mean = out[1], .rstd = out[2]};
  });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(3);
    for (std::int64_t r = 0; r < s.R; ++r) {
      double size = 0;
      for (std::int64_t i = 0; i < s.C; ++i) size += std::abs(in[0][r * s.C + i]);
      const double mean_error = slack_units(s.C) * size / static_cast<double>(s.C);
      // The mean's error moves the variance in the second order only: by its square.
      const double rstd = want[2][r];
      const double statistic =
          slack_units(s.C) / 2 + kSlack / 2 * kUnitF32 + std::pow(mean_error * rstd, 2);
      for (std::int64_t i = r * s.C; i < (r + 1) * s.C; ++i) {
        const double weight = std::abs(in[1][i % s.C]);
        const double normed = std::abs(in[0][i] - want[1][r]) * rstd;
        const double sum =
            weight * (mean_error * rstd + statistic * normed) + kUnitF32 * std::abs(in[2][i % s.C]);
        bounds[0].push_back(sum + rounding.of(std::abs(want[0][i]) + sum));
      }
      bounds[1].push_back(mean_error);
      bounds[2].push_back(statistic * rstd);
    }
    return bounds;
  };
  return c;
}

OpCase layer_backward_case(DType compute, const NormShape& s, bool with_residual, Random& random) {
  const BackwardInputs b{s, true, with_residual, rounding_to(compute)};
  OpCase c;
  c.name = fmt::format("layer_norm_backward R={} C={} residual={}", s.R, s.C, with_residual);
  c.inputs = backward_inputs(compute, b, random);
  c.outputs.push_back({compute, shape(s.R, s.C)});
  c.outputs.push_back({DType::kF32, shape(s.C), OutputKind::kGradient});
  c.outputs.push_back({DType::kF32, shape(s.C), OutputKind::kGradient});
  set_op(c, &KernelTable::layer_norm_backward,
         [with_residual](const Views& in, const Views& out, GradientMode mode) {
           return LayerNormBackward{.dy = in[0],
                                    .x = in[1],
                                    .weight = in[2],
                                    .mean = in[4],
                                    .rstd = in[3],
                                    .dresidual = with_residual ? in[5] : TensorView{},
                                    .dx = out[0],
                                    .dweight = out[1],
                                    .dbias = out[2],
                                    .mode = mode};
         });
  use_norm_workspace(c, s);
  c.bounds = [b](const Values& in, const Values& want) { return backward_bounds(b, in, want); };
  return c;
}

// dresidual in the same memory as dx must give the bits of dresidual elsewhere.
OpCase rms_backward_in_place_case(DType compute, const NormShape& s, Random& random) {
  OpCase c = rms_backward_case(compute, s, true, random);
  c.name += " in place";
  c.outputs[0].kind = OutputKind::kInPlace;
  c.outputs[0].same_as = 5;
  set_op(c, &KernelTable::rms_norm_backward,
         [](const Views& in, const Views& out, GradientMode mode) {
           return RmsNormBackward{.dy = in[0],
                                  .x = in[1],
                                  .weight = in[2],
                                  .rstd = in[3],
                                  .dresidual = out[0],
                                  .dx = out[0],
                                  .dweight = out[1],
                                  .mode = mode};
         });
  use_norm_workspace(c, s);
  return c;
}

OpCase layer_backward_in_place_case(DType compute, const NormShape& s, Random& random) {
  OpCase c = layer_backward_case(compute, s, true, random);
  c.name += " in place";
  c.outputs[0].kind = OutputKind::kInPlace;
  c.outputs[0].same_as = 5;
  set_op(c, &KernelTable::layer_norm_backward,
         [](const Views& in, const Views& out, GradientMode mode) {
           return LayerNormBackward{.dy = in[0],
                                    .x = in[1],
                                    .weight = in[2],
                                    .mean = in[4],
                                    .rstd = in[3],
                                    .dresidual = out[0],
                                    .dx = out[0],
                                    .dweight = out[1],
                                    .dbias = out[2],
                                    .mode = mode};
         });
  use_norm_workspace(c, s);
  return c;
}

}  // namespace

std::vector<OpCase> norm_cases(DType compute) {
  Random random(2);
  std::vector<OpCase> cases;
  for (const NormShape& s : kNormShapes) {
    cases.push_back(rms_forward_case(compute, s, random));
    cases.push_back(layer_forward_case(compute, s, random));
    for (const bool with_residual : {false, true}) {
      cases.push_back(rms_backward_case(compute, s, with_residual, random));
      cases.push_back(layer_backward_case(compute, s, with_residual, random));
    }
    cases.push_back(rms_backward_in_place_case(compute, s, random));
    cases.push_back(layer_backward_in_place_case(compute, s, random));
  }
  return cases;
}

}  // namespace terrace::test
