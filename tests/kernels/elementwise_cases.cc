#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/op_case.h"

// Activations: exp and tanh of a SIMD library may be off by some units in the last place, so
// results must be within kFunction u times the size of the terms that are added, u the unit
// roundoff of fp32, plus one rounding to the compute type. All other ops here are single roundings
// or copies: bit for bit.
namespace terrace::test {
namespace {

constexpr double kFunction = 32 * kUnitF32;

constexpr std::int64_t kSizes[] = {1, 37, 100, 4097};

double stored(double sum_error, double want, const Rounding& rounding) {
  return sum_error + rounding.of(std::abs(want) + sum_error);
}

struct RowsShape {
  std::int64_t R, I;
};

constexpr RowsShape kRows[] = {{1, 1}, {37, 75}, {5, 64}, {2, 1030}};

// The sizes of the terms that an activation's value and its derivative are added from, at x: their
// errors are relative to these. silu' = s (1 + x (1 - s)), s the sigmoid: 1 - s is off by u, not by
// u (1 - s). gelu = x/2 (1 + tanh): for negative x the sum cancels.
struct ActivationSize {
  double value, slope;
};

ActivationSize activation_size(GateActivation activation, double x) {
  if (activation == GateActivation::kSilu) {
    const double s = 1 / (1 + std::exp(-x));
    return {std::abs(x) * s, s * (1 + std::abs(x))};
  }
  if (activation == GateActivation::kClampedGate) {
    const double g = std::min(x, static_cast<double>(kGateClamp));
    const double inner = static_cast<double>(kGateSlope) * g;  // a rounded product
    const double s = 1 / (1 + std::exp(-inner)) * (1 + std::abs(inner));
    return {std::abs(g) * s, s * (1 + std::abs(inner))};
  }
  const double inner = 0.8 * (1 + 0.135 * x * x);  // the derivative of the tanh's argument
  return {std::abs(x), 1 + std::abs(x) * inner};
}

// Returns the size of the factor that an activation is multiplied by.
double factor_size(GateActivation activation, double up) {
  if (activation != GateActivation::kClampedGate) return std::abs(up);
  return std::min(std::abs(up), static_cast<double>(kGateClamp)) + 1;
}

double gate_range(GateActivation activation) {
  return activation == GateActivation::kGeluTanh ? 8.0 : 12.0;
}

constexpr GateActivation kActivations[] = {GateActivation::kSilu, GateActivation::kGeluTanh,
                                           GateActivation::kClampedGate};

// Numbers that say which of some rows an op computes, or none of them: then it computes all rows.
HostTensor row_range_of(std::int64_t rows, bool has_range) {
  HostTensor numbers(DType::kI32, shape(3));
  numbers.set(0, static_cast<double>(has_range ? rows / 3 : 0));
  numbers.set(1, static_cast<double>(has_range ? rows / 2 : 0));
  numbers.set(2, static_cast<double>(has_range ? rows - rows / 4 : rows));
  return numbers;
}

OpCase glu_forward_case(DType compute, const RowsShape& s, GateActivation activation,
                        bool has_range, Random& random) {
  OpCase c;
  c.name = fmt::format("glu_forward R={} I={} activation={} range={}", s.R, s.I,
                       static_cast<int>(activation), has_range);
  c.inputs.push_back(
      HostTensor::random(compute, shape(s.R, 2 * s.I), random, gate_range(activation)));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.I), random));
  c.inputs.push_back(row_range_of(s.R, has_range));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.I)}};
  if (has_range) c.outputs[0] = {compute, shape(s.R, s.I), OutputKind::kInPlace, 1};
  set_op(c, &KernelTable::glu_forward,
         [activation, has_range](const Views& in, const Views& out, GradientMode) {
           return GluForward{.gate_up = in[0],
                             .y = out[0],
                             .activation = activation,
                             .row_range = has_range ? in[2] : TensorView{}};
         });
  c.bounds = [s, activation, rounding = rounding_to(compute)](const Values& in,
                                                              const Values& want) {
    Values bounds(1);
    for (std::int64_t i = 0; i < s.R * s.I; ++i) {
      const std::int64_t gate_at = i / s.I * 2 * s.I + i % s.I;
      const double up = factor_size(activation, in[0][gate_at + s.I]);
      const double size = up * activation_size(activation, in[0][gate_at]).value;
      bounds[0].push_back(stored(kFunction * size, want[0][i], rounding));
    }
    return bounds;
  };
  return c;
}

OpCase glu_backward_case(DType compute, const RowsShape& s, GateActivation activation,
                         bool has_range, Random& random) {
  OpCase c;
  c.name = fmt::format("glu_backward R={} I={} activation={} range={}", s.R, s.I,
                       static_cast<int>(activation), has_range);
  c.inputs.push_back(
      HostTensor::random(compute, shape(s.R, 2 * s.I), random, gate_range(activation)));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.I), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, 2 * s.I), random));
  c.inputs.push_back(row_range_of(s.R, has_range));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, 2 * s.I)}};
  if (has_range) c.outputs[0] = {compute, shape(s.R, 2 * s.I), OutputKind::kInPlace, 2};
  set_op(c, &KernelTable::glu_backward,
         [activation, has_range](const Views& in, const Views& out, GradientMode) {
           return GluBackward{.gate_up = in[0],
                              .dy = in[1],
                              .dgate_up = out[0],
                              .activation = activation,
                              .row_range = has_range ? in[3] : TensorView{}};
         });
  c.bounds = [s, activation, rounding = rounding_to(compute)](const Values& in,
                                                              const Values& want) {
    Values bounds = {std::vector<double>(want[0].size())};
    for (std::int64_t i = 0; i < s.R * s.I; ++i) {
      const std::int64_t gate_at = i / s.I * 2 * s.I + i % s.I;
      const std::int64_t up_at = gate_at + s.I;
      const ActivationSize size = activation_size(activation, in[0][gate_at]);
      const double dgate = std::abs(in[1][i]) * factor_size(activation, in[0][up_at]) * size.slope;
      const double dup = std::abs(in[1][i]) * size.value;
      bounds[0][gate_at] = stored(kFunction * dgate, want[0][gate_at], rounding);
      bounds[0][up_at] = stored(kFunction * dup, want[0][up_at], rounding);
    }
    return bounds;
  };
  return c;
}

OpCase gelu_forward_case(DType compute, std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("gelu_forward {}", size);
  c.inputs.push_back(HostTensor::random(compute, shape(size), random, 8.0));
  c.outputs = {{.dtype = compute, .shape = shape(size)}};
  set_op(c, &KernelTable::gelu_forward, [](const Views& in, const Views& out, GradientMode) {
    return GeluForward{.x = in[0], .y = out[0]};
  });
  c.bounds = [rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::size_t i = 0; i < want[0].size(); ++i) {
      bounds[0].push_back(stored(kFunction * std::abs(in[0][i]), want[0][i], rounding));
    }
    return bounds;
  };
  return c;
}

OpCase gelu_backward_case(DType compute, std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("gelu_backward {}", size);
  c.inputs.push_back(HostTensor::random(compute, shape(size), random, 8.0));
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.outputs = {{.dtype = compute, .shape = shape(size)}};
  set_op(c, &KernelTable::gelu_backward, [](const Views& in, const Views& out, GradientMode) {
    return GeluBackward{.x = in[0], .dy = in[1], .dx = out[0]};
  });
  c.bounds = [rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::size_t i = 0; i < want[0].size(); ++i) {
      const double slope = activation_size(GateActivation::kGeluTanh, in[0][i]).slope;
      bounds[0].push_back(stored(kFunction * std::abs(in[1][i]) * slope, want[0][i], rounding));
    }
    return bounds;
  };
  return c;
}

OpCase add_case(DType compute, std::int64_t size, bool in_place, float b_scale, Random& random) {
  OpCase c;
  c.name = fmt::format("add {} in_place={} scale={}", size, in_place, b_scale);
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.outputs = {{.dtype = compute,
                .shape = shape(size),
                .kind = in_place ? OutputKind::kInPlace : OutputKind::kOverwritten,
                .same_as = 1}};
  set_op(c, &KernelTable::add, [=](const Views& in, const Views& out, GradientMode) {
    return Add{.a = in[0], .b = in_place ? out[0] : in[1], .y = out[0], .b_scale = b_scale};
  });
  return c;
}

OpCase scale_case(DType compute, std::int64_t size, bool in_place, Random& random) {
  OpCase c;
  c.name = fmt::format("scale {} in_place={}", size, in_place);
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.outputs = {{.dtype = compute,
                .shape = shape(size),
                .kind = in_place ? OutputKind::kInPlace : OutputKind::kOverwritten}};
  set_op(c, &KernelTable::scale, [in_place](const Views& in, const Views& out, GradientMode) {
    return Scale{.x = in_place ? out[0] : in[0], .y = out[0], .factor = 12.3F};
  });
  return c;
}

// Columns of wider matrices, from `first` on; or whole rows, where `more` is 0. Elements beside the
// columns stay as they are.
struct RowsOfScale {
  std::int64_t R, width, first, more;
};

constexpr RowsOfScale kScaledRows[] = {
    {1, 1, 0, 0}, {37, 75, 0, 0}, {5, 16, 32, 64}, {23, 37, 3, 11}, {3, 4097, 5, 2}};

OpCase scale_rows_case(DType compute, const RowsOfScale& s, bool of_x, bool adds, Random& random) {
  OpCase c;
  c.name = fmt::format("scale_rows R={} width={} first={} of_x={} adds={}", s.R, s.width, s.first,
                       of_x, adds);
  const std::int64_t wide = s.first + s.width + s.more;
  const std::int64_t x_columns = of_x ? wide : s.width;
  const std::int64_t y_columns = of_x ? s.width : wide;
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, x_columns), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, y_columns), random));
  c.outputs = {{.dtype = compute,
                .shape = shape(s.R, y_columns),
                .kind = OutputKind::kInPlace,
                .same_as = 1}};
  set_op(c, &KernelTable::scale_rows, [=](const Views& in, const Views& out, GradientMode) {
    const StridedRows x = columns_of(in[0], of_x ? s.first : 0, s.width);
    const StridedRows y = columns_of(out[0], of_x ? 0 : s.first, s.width);
    return ScaleRows{.x = x, .y = y, .factor = 1.7F, .adds = adds};
  });
  return c;
}

// R rows with C columns of a wider tensor, beginning at its column `first`. Each `positions` rows
// are one sample: 4, then none (-1), then 6, 7, ...
struct DropoutShape {
  std::int64_t R, C, first, positions;
};

constexpr DropoutShape kDropouts[] = {{1, 1, 0, 1},    {37, 75, 0, 5},   {5, 16, 32, 5},
                                      {9, 1030, 0, 2}, {6, 261, 259, 3}, {3, 4097, 5, 1},
                                      {4, 70, 1000, 2}};

// Other thresholds than of a usual probability: an element is always kept, or dropped unless its
// random word is the largest.
constexpr std::uint32_t kThreshold = 0x50000000;
constexpr std::uint32_t kThresholds[] = {kThreshold, 0, 0xFFFFFFFF};

OpCase dropout_case(DType compute, const DropoutShape& s, std::uint32_t threshold, bool in_place,
                    Random& random) {
  OpCase c;
  c.name = fmt::format("dropout R={} C={} first={} positions={} threshold={} in_place={}", s.R, s.C,
                       s.first, s.positions, threshold, in_place);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 5; i < s.R * s.C; i += 7) {
    c.inputs[0].set(i, i % 2 == 0 ? kInfinity : -kInfinity);
  }
  HostTensor samples(DType::kI32, shape(s.R));
  for (std::int64_t row = 0; row < s.R; ++row) {
    const std::int64_t sample = row / s.positions;
    samples.set(row, sample == 1 ? -1.0 : 4.0 + static_cast<double>(sample));
  }
  c.inputs.push_back(samples);
  c.outputs = {{.dtype = compute,
                .shape = shape(s.R, s.C),
                .kind = in_place ? OutputKind::kInPlace : OutputKind::kOverwritten}};
  set_op(c, &KernelTable::dropout, [=](const Views& in, const Views& out, GradientMode) {
    return Dropout{.x = in_place ? out[0] : in[0],
                   .y = out[0],
                   .samples = in[1],
                   .positions = s.positions,
                   .first_column = s.first,
                   .seed = 0x123456789abcdef,
                   .stream = 77,
                   .threshold = threshold,
                   .factor = 1.4545455F};
  });
  return c;
}

OpCase magnitude_factors_case(DType compute, std::int64_t columns, Random& random) {
  OpCase c;
  c.name = fmt::format("magnitude_factors {}", columns);
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(columns), random));
  c.inputs.push_back(HostTensor::random(compute, shape(columns), random));
  for (std::int64_t i = 0; i < columns; ++i) {
    c.inputs[0].set(i, i == 3 ? 0.0 : 0.5 + std::abs(c.inputs[0].at(i)));
  }
  c.outputs = {{.dtype = DType::kF32, .shape = shape(columns)},
               {.dtype = DType::kF32, .shape = shape(columns)}};
  set_op(c, &KernelTable::magnitude_factors, [](const Views& in, const Views& out, GradientMode) {
    return MagnitudeFactors{in[0], in[1], out[0], out[1]};
  });
  return c;
}

OpCase scale_columns_case(DType compute, const RowsOfScale& s, bool has_times, bool has_bias,
                          Random& random) {
  OpCase c;
  c.name = fmt::format("scale_columns R={} width={} first={} times={} bias={}", s.R, s.width,
                       s.first, has_times, has_bias);
  const std::int64_t wide = s.first + s.width + s.more;
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, wide), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, wide), random));
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(s.width), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.width), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, wide), random));
  c.outputs = {
      {.dtype = compute, .shape = shape(s.R, wide), .kind = OutputKind::kInPlace, .same_as = 4}};
  set_op(c, &KernelTable::scale_columns, [=](const Views& in, const Views& out, GradientMode) {
    ScaleColumns op;
    op.x = columns_of(in[0], s.first, s.width);
    if (has_times) op.times = columns_of(in[1], s.first, s.width);
    op.factors = in[2];
    if (has_bias) op.bias = in[3];
    op.y = columns_of(out[0], s.first, s.width);
    return op;
  });
  return c;
}

OpCase accumulate_case(std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("accumulate_gradient {}", size);
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(size), random));
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(size), random));
  c.outputs = {
      {.dtype = DType::kF32, .shape = shape(size), .kind = OutputKind::kInPlace, .same_as = 1}};
  set_op(c, &KernelTable::accumulate_gradient, [](const Views& in, const Views& out, GradientMode) {
    return AccumulateGradient{.source = in[0], .target = out[0]};
  });
  return c;
}

// Numbers used besides ordinary ones: ties of both signs, the largest fp32, infinities, denormals,
// NaN.
constexpr std::uint32_t kSpecialBits[] = {
    0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x00000001,
    0x80008000, 0x00018000, 0x7FC00000, 0x7F800001, 0x80000000, 0x00000000,
    // For rounding to fp16: ties between normal numbers, the largest number that stays finite and
    // the least that does not, ties between denormals.
    0x3F801000, 0xBF803000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0xB3C00000};
// In fp16: denormals, the largest number, infinities, NaN, zeros.
constexpr std::uint16_t kSpecialHalfBits[] = {0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00,
                                              0x7E00, 0x7C01, 0x8000, 0x0000};

OpCase round_gradient_case(std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("round_gradient {}", size);
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(size), random));
  float* const source = c.inputs[0].view().as<float>();
  std::int64_t i = 0;
  for (const std::uint32_t bits : kSpecialBits) {
    if (i < size) source[i++] = std::bit_cast<float>(bits);
  }
  c.outputs = {{.dtype = DType::kBF16, .shape = shape(size)}};
  set_op(c, &KernelTable::round_gradient, [](const Views& in, const Views& out, GradientMode) {
    return RoundGradient{.source = in[0], .target = out[0]};
  });
  return c;
}

OpCase fill_zero_case(DType compute, std::int64_t size) {
  OpCase c;
  c.name = fmt::format("fill_zero {}", size);
  c.outputs = {{.dtype = compute, .shape = shape(size)}};
  set_op(c, &KernelTable::fill_zero,
         [](const Views&, const Views& out, GradientMode) { return FillZero{.target = out[0]}; });
  return c;
}

OpCase cast_case(DType from, DType to, std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("cast_parameters {} -> {} {}", name_of(from), name_of(to), size);
  c.inputs.push_back(HostTensor::random(from, shape(size), random));
  const TensorView& source = c.inputs[0].view();
  std::int64_t i = 0;
  for (const std::uint32_t bits : kSpecialBits) {
    if (i >= size || from == DType::kF16) break;
    if (from == DType::kF32) {
      source.as<float>()[i++] = std::bit_cast<float>(bits);
    } else {
      source.as<Bf16>()[i++] = Bf16{static_cast<std::uint16_t>(bits >> 16)};
    }
  }
  for (const std::uint16_t bits : kSpecialHalfBits) {
    if (i < size && from == DType::kF16) source.as<Fp16>()[i++] = Fp16{bits};
  }
  c.outputs = {{.dtype = to, .shape = shape(size)}};
  set_op(c, &KernelTable::cast_parameters, [](const Views& in, const Views& out, GradientMode) {
    return CastParameters{.source = in[0], .target = out[0]};
  });
  return c;
}

OpCase norm_partials_case(DType gradient, std::int64_t size, Random& random) {
  OpCase c;
  c.name = fmt::format("norm_partials {} {}", name_of(gradient), size);
  c.inputs.push_back(HostTensor::random(gradient, shape(size), random, 1e-3));
  c.outputs = {{.dtype = DType::kF64, .shape = shape((size + kNormBlock - 1) / kNormBlock)}};
  set_op(c, &KernelTable::norm_partials, [](const Views& in, const Views& out, GradientMode) {
    return NormPartials{.gradient = in[0], .partials = out[0]};
  });
  return c;
}

// Returns the bytes of a quantised matrix, with all codes and possible scales. They are in a tensor
// of i32, because that begins on a boundary of 4.
HostTensor random_quantized(const QuantizedShape& s, Random& random) {
  HostTensor tensor(DType::kI32, shape(s.size_bytes() / 4));
  std::byte* const bytes = tensor.view().data;
  const bool is_nf4 = s.form == QuantizedForm::kNf4;
  const std::int64_t floats = is_nf4 ? s.factors_begin() : s.scales_begin();
  for (std::int64_t i = 0; i < floats; ++i) bytes[i] = static_cast<std::byte>(random.below(256));
  for (std::int64_t i = floats; i < s.size_bytes(); i += 4) {
    const auto value = static_cast<float>(0.25 + random.uniform() / 8);
    std::memcpy(bytes + i, &value, sizeof(value));
  }
  return tensor;
}

OpCase dequantize_case(DType compute, const QuantizedShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("dequantize {} elements={} rank={} of {}",
                       s.form == QuantizedForm::kNf4 ? "nf4" : "int8", s.elements, s.rank, s.ranks);
  c.inputs.push_back(random_quantized(s, random));
  c.outputs = {{.dtype = compute, .shape = shape(s.elements)}};
  set_op(c, &KernelTable::dequantize, [s](const Views& in, const Views& out, GradientMode) {
    return Dequantize{view(in[0].data, DType::kU8, s.size_bytes()), s, out[0]};
  });
  return c;
}

// Returns shapes with less than a block, some blocks and a rest, more than a group of scales, and a
// part of a matrix.
std::vector<QuantizedShape> quantized_shapes() {
  std::vector<QuantizedShape> shapes;
  for (const QuantizedForm form : {QuantizedForm::kNf4, QuantizedForm::kInt8}) {
    for (const std::int64_t elements : {5, 64, 1000, 70016}) {
      shapes.push_back({.form = form, .elements = elements});
    }
    shapes.push_back({.form = form, .elements = 600 * 64, .run_blocks = 3, .ranks = 2, .rank = 1});
  }
  return shapes;
}

}  // namespace

std::vector<OpCase> activation_cases(DType compute) {
  Random random(5);
  std::vector<OpCase> cases;
  for (const RowsShape& s : kRows) {
    for (const GateActivation activation : kActivations) {
      for (const bool has_range : {false, true}) {
        cases.push_back(glu_forward_case(compute, s, activation, has_range, random));
        cases.push_back(glu_backward_case(compute, s, activation, has_range, random));
      }
    }
  }
  for (const std::int64_t size : kSizes) {
    cases.push_back(gelu_forward_case(compute, size, random));
    cases.push_back(gelu_backward_case(compute, size, random));
  }
  return cases;
}

std::vector<OpCase> elementwise_cases(DType compute) {
  Random random(6);
  std::vector<OpCase> cases;
  for (const std::int64_t size : kSizes) {
    for (const bool in_place : {false, true}) {
      for (const float b_scale : {1.0F, 0.22F}) {
        cases.push_back(add_case(compute, size, in_place, b_scale, random));
      }
      cases.push_back(scale_case(compute, size, in_place, random));
    }
    cases.push_back(accumulate_case(size, random));
    cases.push_back(magnitude_factors_case(compute, size, random));
    cases.push_back(fill_zero_case(compute, size));
    cases.push_back(cast_case(compute, DType::kF32, size, random));
    cases.push_back(cast_case(DType::kF32, compute, size, random));
    cases.push_back(cast_case(compute, compute, size, random));
    cases.push_back(norm_partials_case(compute, size, random));
    cases.push_back(round_gradient_case(size, random));
  }
  for (const RowsOfScale& rows : kScaledRows) {
    for (const bool of_x : {false, true}) {
      for (const bool adds : {false, true}) {
        cases.push_back(scale_rows_case(compute, rows, of_x, adds, random));
        cases.push_back(scale_columns_case(compute, rows, of_x, adds, random));
      }
    }
  }
  for (const DropoutShape& dropout : kDropouts) {
    for (const bool in_place : {false, true}) {
      for (const std::uint32_t threshold : kThresholds) {
        cases.push_back(dropout_case(compute, dropout, threshold, in_place, random));
      }
    }
  }
  for (const QuantizedShape& quantized : quantized_shapes()) {
    cases.push_back(dequantize_case(compute, quantized, random));
  }
  cases.push_back(norm_partials_case(compute, kNormBlock, random));
  cases.push_back(norm_partials_case(compute, 3 * kNormBlock + 5, random));
  return cases;
}

}  // namespace terrace::test
