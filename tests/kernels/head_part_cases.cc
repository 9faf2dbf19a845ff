#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/head_chunk.h"
#include "tests/kernels/op_case.h"

// Bounds as in head_loss_cases.cc: a logit is off by s = (C+2) u sum|h||w|, and an exponential of
// its distance to a maximum has a relative error of 2 s + 2 u (|logit| + |maximum|) + kExpUnits u.
// The second pass gets the sums as its input, so their errors are not its own; its loss is a
// function of them alone.
namespace terrace::test {
namespace {

constexpr float kPartScale = 0.37F;
constexpr std::int64_t kParts = 3;

struct PartShape {
  std::int64_t R, C, V;
  std::int64_t first_token;
  float logit_scale = 1.0F;
  float soft_cap = 0.0F;

  std::string map_name() const { return fmt::format("scale={} cap={}", logit_scale, soft_cap); }
};

// The last shape has several chunks of rows, and its last chunk is short.
constexpr PartShape kHeadPartShapes[] = {
    {1, 1, 1, 0},
    {37, 100, 75, 75},
    {41, 40, 104, 0},
    {130, 32, 301, 602},
    {4096 + 37, 5, 3, 3},
    // Scales and caps: the logits are several times as large as the small caps.
    {37, 100, 75, 75, 0.125F, 0.0F},
    {41, 40, 104, 0, 1.0F, 0.3F},
    {130, 32, 1301, 2602, 3.0F, 2.0F},
    {4096 + 37, 5, 3, 3, -0.5F, 0.1F}};

struct Logit {
  double value = 0, error = 0;
  double slope = 1, slope_error = 0;  // with respect to the product
};

// Turns a product with its error into a logit with its error, as in head_loss_cases.cc.
void map_logit(const PartShape& s, Logit& logit) {
  const double scale = std::abs(s.logit_scale);
  logit.value *= s.logit_scale;
  logit.error *= scale;
  if (s.logit_scale != 1.0F) logit.error += kUnitF32 * std::abs(logit.value);
  logit.slope = scale;
  if (s.soft_cap <= 0) return;
  logit.value = s.soft_cap * std::tanh(logit.value / s.soft_cap);
  logit.error += kMapUnits * kUnitF32 * std::abs(logit.value);
  const double share = std::abs(logit.value) / s.soft_cap;
  logit.slope = scale * (1 - share * share);
  logit.slope_error = scale * (2 * share * logit.error / s.soft_cap + kMapUnits * kUnitF32);
}

Logit logit_of(const PartShape& s, const Values& in, std::int64_t r, std::int64_t v) {
  Logit logit;
  double size = 0;
  for (std::int64_t c = 0; c < s.C; ++c) {
    const double term = in[0][r * s.C + c] * in[1][v * s.C + c];
    logit.value += term;
    size += std::abs(term);
  }
  logit.error = units(s.C + 2) * size;
  map_logit(s, logit);
  return logit;
}

// Returns the relative error of the exponential of a logit's distance to `max`, whose own error is
// `max_error`.
double exponential_error(const Logit& logit, double max, double max_error) {
  return 2 * (logit.error + max_error) + 4 * kUnitF32 * (std::abs(logit.value) + std::abs(max)) +
         kExpUnits * kUnitF32;
}

Values sums_bounds(const PartShape& s, const Values& in, const Values& want) {
  std::vector<double> bounds(static_cast<std::size_t>(3 * s.R), 0.0);
  for (std::int64_t r = 0; r < s.R; ++r) {
    if (in[2][r] < 0) continue;
    double most = 0;
    double error = 0;
    for (std::int64_t v = 0; v < s.V; ++v) most = std::max(most, logit_of(s, in, r, v).error);
    for (std::int64_t v = 0; v < s.V; ++v) {
      error = std::max(error, exponential_error(logit_of(s, in, r, v), want[0][3 * r], most));
    }
    bounds[3 * r] = most;
    bounds[3 * r + 1] = (error + units(s.V + 2)) * want[0][3 * r + 1];
    bounds[3 * r + 2] = most;
  }
  return {bounds};
}

// Returns targets from all parts; every fifth row is not counted.
HostTensor targets_of(const PartShape& s, Random& random) {
  HostTensor targets =
      HostTensor::random_indices(shape(s.R), random, static_cast<std::int32_t>(kParts * s.V));
  for (std::int64_t r = 3; r < s.R; r += 5) targets.set(r, r % 2 == 0 ? -1 : -100);
  return targets;
}

OpCase sums_case(DType compute, const PartShape& s, Random& random) {
  OpCase c;
  c.name = fmt::format("head_sums R={} C={} V={} first={} {}", s.R, s.C, s.V, s.first_token,
                       s.map_name());
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random));
  c.inputs.push_back(targets_of(s, random));
  c.outputs = {{.dtype = DType::kF32, .shape = shape(s.R, 3)}};
  set_op(c, &KernelTable::head_sums, &KernelTable::head_sums_workspace,
         [s](const Views& in, const Views& out, GradientMode) {
           return HeadSums{in[0], in[1], in[2], out[0], s.first_token, s.logit_scale, s.soft_cap};
         });
  c.bounds = [s](const Values& in, const Values& want) { return sums_bounds(s, in, want); };
  return c;
}

// The sums over all parts, computed from the sums that are the op's input.
struct Whole {
  double max = 0, sum = 0, size = 0;
};

Whole whole_of(const PartShape& s, const Values& in, std::int64_t r) {
  const auto part = [&](std::int64_t p, std::int64_t i) { return in[3][(p * s.R + r) * 3 + i]; };
  Whole whole{part(0, 0), 0, 0};
  for (std::int64_t p = 1; p < kParts; ++p) whole.max = std::max(whole.max, part(p, 0));
  for (std::int64_t p = 0; p < kParts; ++p) {
    whole.sum += part(p, 1) * std::exp(part(p, 0) - whole.max);
    whole.size += std::abs(part(p, 2));
  }
  return whole;
}

// Returns the bound of the loss, which is computed in fp64 from exact sums and added over the rows.
double loss_bound(const PartShape& s, const Values& in) {
  double bound = 0;
  for (std::int64_t r = 0; r < s.R; ++r) {
    const Whole whole = whole_of(s, in, r);
    bound += kUnitF32 * (std::abs(whole.max) + std::abs(std::log(whole.sum)) + whole.size + 1);
  }
  return bound;
}

Values loss_bounds(const PartShape& s, const Rounding& rounding, const Values& in,
                   const Values& want) {
  Values bounds = {{loss_bound(s, in)}};
  if (want.size() == 1) return bounds;
  bounds.emplace_back(s.R * s.C, 0.0);
  bounds.emplace_back(s.V * s.C, 0.0);
  for (std::int64_t r = 0; r < s.R; ++r) {
    if (in[2][r] < 0) continue;
    const Whole whole = whole_of(s, in, r);
    double most = 0;
    for (std::int64_t v = 0; v < s.V; ++v) most = std::max(most, logit_of(s, in, r, v).error);
    for (std::int64_t v = 0; v < s.V; ++v) {
      const Logit logit = logit_of(s, in, r, v);
      const double p = std::exp(logit.value - whole.max) / whole.sum;
      const bool is_target = v + s.first_token == static_cast<std::int64_t>(in[2][r]);
      const double difference = kPartScale * std::abs(is_target ? p - 1 : p);
      const double gradient = difference * logit.slope;
      const double error = kPartScale * p * logit.slope *
                               (exponential_error(logit, whole.max, most) + units(kParts + 6)) +
                           difference * logit.slope_error + rounding.of(gradient) +
                           4 * kUnitF32 * gradient;
      for (std::int64_t c = 0; c < s.C; ++c) {
        bounds[1][r * s.C + c] +=
            (error + units(s.V + 2) * gradient) * std::abs(in[1][v * s.C + c]);
        bounds[2][v * s.C + c] +=
            (error + units(s.R + 2) * gradient) * std::abs(in[0][r * s.C + c]);
      }
    }
  }
  for (std::size_t i = 0; i < bounds[1].size(); ++i) {
    bounds[1][i] += rounding.of(std::abs(want[1][i]) + bounds[1][i]);
  }
  return bounds;
}

// Returns sums that parts might give: a maximum of a logit's size, a sum of a few exponentials up
// to 1, and the target's logit from the part that has it. If this part has it, it is the true
// logit.
HostTensor told_sums(const PartShape& s, const std::vector<HostTensor>& inputs, Random& random) {
  Values in;
  for (const HostTensor& input : inputs) {
    in.emplace_back();
    for (std::int64_t i = 0; i < input.elements(); ++i) in.back().push_back(input.at(i));
  }
  HostTensor sums = HostTensor::random(DType::kF32, shape(kParts * s.R, 3), random);
  for (std::int64_t row = 0; row < kParts * s.R; ++row) {
    sums.set(3 * row + 1, 1 + 3 * std::abs(sums.at(3 * row + 1)));
    const auto target = static_cast<std::int64_t>(in[2][row % s.R]);
    if (target < 0 || target / s.V != row / s.R) {
      sums.set(3 * row + 2, 0);
    } else if (target / s.V == s.first_token / s.V) {
      sums.set(3 * row + 2, logit_of(s, in, row % s.R, target % s.V).value);
    }
  }
  return sums;
}

OpCase loss_case(DType compute, const PartShape& s, bool backward, Random& random) {
  OpCase c;
  c.name = fmt::format("head_part_loss R={} C={} V={} first={} backward={} {}", s.R, s.C, s.V,
                       s.first_token, backward, s.map_name());
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random, 0.3));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random, 0.3));
  c.inputs.push_back(targets_of(s, random));
  c.inputs.push_back(told_sums(s, c.inputs, random));
  c.outputs = {{.dtype = DType::kF64, .shape = shape(1)}};
  if (backward) {
    c.outputs.push_back({compute, shape(s.R, s.C)});
    c.outputs.push_back({DType::kF32, shape(s.V, s.C), OutputKind::kGradient});
  }
  set_op(c, &KernelTable::head_part_loss, &KernelTable::head_part_loss_workspace,
         [s, backward](const Views& in, const Views& out, GradientMode mode) {
           HeadPartLoss op;
           op.h = in[0];
           op.weight = in[1];
           op.target = in[2];
           op.sums = in[3];
           op.first_token = s.first_token;
           op.gradient_scale = kPartScale;
           op.logit_scale = s.logit_scale;
           op.soft_cap = s.soft_cap;
           op.mode = mode;
           op.loss_sum = out[0].as<double>();
           if (backward) op.dh = out[1];
           if (backward) op.dweight = out[2];
           return op;
         });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return loss_bounds(s, rounding, in, want);
  };
  return c;
}

}  // namespace

std::vector<OpCase> head_part_cases(DType compute) {
  TERRACE_CHECK_LT(head_chunk_rows(kHeadPartShapes[4].V), kHeadPartShapes[4].R);
  Random random(9);
  std::vector<OpCase> cases;
  for (const PartShape& s : kHeadPartShapes) {
    cases.push_back(sums_case(compute, s, random));
    for (const bool backward : {false, true}) {
      cases.push_back(loss_case(compute, s, backward, random));
    }
  }
  return cases;
}

}  // namespace terrace::test
