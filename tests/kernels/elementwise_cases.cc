#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "tests/kernels/op_case.h"

// Activations: exp and tanh of a SIMD library may be off by some units in the last place, so
// results are held to kFunction u times the size of the terms that are added, u the unit roundoff
// of fp32, and one rounding to the compute type. All other ops here are single roundings or copies:
// bit for bit.
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

OpCase swiglu_forward_case(DType compute, const RowsShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("swiglu_forward R={} I={}", s.R, s.I);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, 2 * s.I), random, 12.0));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.I)}};
  set_op(c, &KernelTable::swiglu_forward, [](const Views& in, const Views& out, GradientMode) {
    return SwigluForward{.gate_up = in[0], .y = out[0]};
  });
  c.bounds = [rounding = rounding_to(compute)](const Values&, const Values& want) {
    Values bounds(1);
    for (const double y : want[0])
      bounds[0].push_back(stored(kFunction * std::abs(y), y, rounding));
    return bounds;
  };
  return c;
}

// dgate = dy up s (1 + gate (1 - s)), s the sigmoid: 1 - s is off by u, not by u (1 - s).
OpCase swiglu_backward_case(DType compute, const RowsShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("swiglu_backward R={} I={}", s.R, s.I);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, 2 * s.I), random, 12.0));
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.I), random));
  c.outputs = {{.dtype = compute, .shape = shape(s.R, 2 * s.I)}};
  set_op(c, &KernelTable::swiglu_backward, [](const Views& in, const Views& out, GradientMode) {
    return SwigluBackward{.gate_up = in[0], .dy = in[1], .dgate_up = out[0]};
  });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds = {std::vector<double>(want[0].size())};
    for (std::int64_t i = 0; i < s.R * s.I; ++i) {
      const std::int64_t gate_at = i / s.I * 2 * s.I + i % s.I;
      const std::int64_t up_at = gate_at + s.I;
      const double gate = in[0][gate_at];
      const double dgate_size =
          std::abs(in[1][i] * in[0][up_at]) / (1 + std::exp(-gate)) * (1 + std::abs(gate));
      bounds[0][gate_at] = stored(kFunction * dgate_size, want[0][gate_at], rounding);
      bounds[0][up_at] = stored(kFunction * std::abs(want[0][up_at]), want[0][up_at], rounding);
    }
    return bounds;
  };
  return c;
}

// y = x/2 (1 + tanh): for negative x the sum cancels, so its error is relative to 1.
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
      const double x = in[0][i];
      const double inner = 0.8 * (1 + 0.135 * x * x);  // the derivative of the tanh's argument
      const double size_of_terms = std::abs(in[1][i]) * (1 + std::abs(x) * inner);
      bounds[0].push_back(stored(kFunction * size_of_terms, want[0][i], rounding));
    }
    return bounds;
  };
  return c;
}

OpCase add_case(DType compute, std::int64_t size, bool in_place, Random& random) {
  OpCase c;
  c.name = fmt::format("add {} in_place={}", size, in_place);
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.inputs.push_back(HostTensor::random(compute, shape(size), random));
  c.outputs = {{.dtype = compute,
                .shape = shape(size),
                .kind = in_place ? OutputKind::kInPlace : OutputKind::kOverwritten,
                .same_as = 1}};
  set_op(c, &KernelTable::add, [in_place](const Views& in, const Views& out, GradientMode) {
    return Add{.a = in[0], .b = in_place ? out[0] : in[1], .y = out[0]};
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

// Beside ordinary numbers: ties of both signs, the largest fp32, infinities, denormals, NaN.
constexpr std::uint32_t kSpecialBits[] = {
    0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x00000001,
    0x80008000, 0x00018000, 0x7FC00000, 0x7F800001, 0x80000000, 0x00000000,
    // To fp16: ties between normal numbers, the largest that stays finite and the least that does
    // not, ties between denormals.
    0x3F801000, 0xBF803000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0xB3C00000};
// Of fp16: denormals, the largest, infinities, NaN, zeros.
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

}  // namespace

std::vector<OpCase> activation_cases(DType compute) {
  Random random(5);
  std::vector<OpCase> cases;
  for (const RowsShape& s : kRows) {
    cases.push_back(swiglu_forward_case(compute, s, random));
    cases.push_back(swiglu_backward_case(compute, s, random));
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
    cases.push_back(add_case(compute, size, false, random));
    cases.push_back(add_case(compute, size, true, random));
    cases.push_back(accumulate_case(size, random));
    cases.push_back(fill_zero_case(compute, size));
    cases.push_back(cast_case(compute, DType::kF32, size, random));
    cases.push_back(cast_case(DType::kF32, compute, size, random));
    cases.push_back(cast_case(compute, compute, size, random));
    cases.push_back(norm_partials_case(compute, size, random));
    cases.push_back(round_gradient_case(size, random));
  }
  cases.push_back(norm_partials_case(compute, kNormBlock, random));
  cases.push_back(norm_partials_case(compute, 3 * kNormBlock + 5, random));
  return cases;
}

}  // namespace terrace::test
