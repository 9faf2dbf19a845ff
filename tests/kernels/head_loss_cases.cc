#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/head_chunk.h"
#include "tests/kernels/op_case.h"

// First-order rounding bounds, with u the unit roundoff of fp32 and t the unit roundoff of the
// compute type. A logit is a sum of C products, so it is off by at most s = (C+2) u sum|h||w|. exp
// of its distance to the largest one or to the log-sum-exp then has a relative error of 2 s + 2 u
// (|logit| + |largest|) + kExpUnits u, and a probability twice that + (V+2) u from the sum. The
// gradients of the logits may be rounded to the compute type before they are multiplied.
//
// A logit that is scaled by k is off by k s; a capped logit is off by no more, as the slope of the
// cap is at most 1, plus kMapUnits u of itself. Its slope k (1 - (logit / cap)^2) is off by the
// change that the logit's error causes, plus kMapUnits u.
namespace terrace::test {
namespace {

constexpr float kScale = 0.37F;

struct HeadShape {
  std::int64_t R, C, V;
  double size;  // of h: small for flat probabilities, large for certain ones
  float logit_scale = 1.0F;
  float soft_cap = 0.0F;

  std::string map_name() const { return fmt::format("scale={} cap={}", logit_scale, soft_cap); }
};

// Vocabularies of whole packs of 8 and others, which are padded in a GPU's products. The last shape
// has several chunks of rows, and its last chunk is short.
constexpr HeadShape kHeadLossShapes[] = {{1, 1, 1, 1.0},
                                         {37, 100, 75, 0.3},
                                         {41, 40, 104, 1.0},
                                         {130, 32, 301, 4.0},
                                         {4096 + 37, 5, 3, 2.0}};
// Scales and caps: the logits are many times as large as the small caps.
constexpr HeadShape kMappedShapes[] = {{37, 100, 75, 0.3, 0.125F, 0.0F},
                                       {37, 100, 75, 1.0, 1.0F, 2.5F},
                                       {41, 40, 104, 4.0, 0.7F, 3.0F},
                                       {130, 32, 1301, 1.0, 3.0F, 30.0F},
                                       {4096 + 37, 5, 3, 2.0, -0.5F, 1.0F}};

enum class Wanted : std::uint8_t { kLoss, kLossAndGradients, kLogits, kLogitsAndLoss };

// The softmax of a row in fp64, from which the bounds of all outputs are computed.
struct Row {
  std::vector<double> probability, logit_error, slope, slope_error;
  double log_sum_exp = 0;
  double error = 0;  // relative, of each probability; absolute, of the log-sum-exp
};

// Scales and caps the last logit, and finds its slope with respect to its product.
void add_slope(const HeadShape& s, Row& row, double& logit) {
  double& error = row.logit_error.back();
  if (s.logit_scale != 1.0F) error += kUnitF32 * std::abs(logit);
  const double scale = std::abs(s.logit_scale);
  if (s.soft_cap > 0) {
    logit = s.soft_cap * std::tanh(logit / s.soft_cap);
    error += kMapUnits * kUnitF32 * std::abs(logit);
  }
  const double share = s.soft_cap > 0 ? std::abs(logit) / s.soft_cap : 0.0;
  row.slope.push_back(scale * (1 - share * share));
  const double mapped = s.soft_cap > 0 ? 2 * share * error / s.soft_cap + kMapUnits * kUnitF32 : 0;
  row.slope_error.push_back(scale * mapped);
}

Row row_of(const HeadShape& s, const Values& in, std::int64_t r) {
  Row row;
  std::vector<double> logits;
  double largest_error = 0;
  double largest = 0;
  for (std::int64_t v = 0; v < s.V; ++v) {
    double sum = 0;
    double size = 0;
    for (std::int64_t c = 0; c < s.C; ++c) {
      const double term = in[0][r * s.C + c] * in[1][v * s.C + c];
      sum += term;
      size += std::abs(term);
    }
    logits.push_back(s.logit_scale * sum);
    row.logit_error.push_back(std::abs(s.logit_scale) * units(s.C + 2) * size);
    add_slope(s, row, logits.back());
    largest_error = std::max(largest_error, row.logit_error.back());
    largest = std::max(largest, std::abs(logits.back()));
  }
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - max);
  row.log_sum_exp = max + std::log(sum);
  for (const double logit : logits) row.probability.push_back(std::exp(logit - row.log_sum_exp));
  const double exponent = 2 * largest_error + 4 * kUnitF32 * (largest + std::abs(max));
  row.error = 2 * (exponent + kExpUnits * kUnitF32) + units(s.V + 2);
  return row;
}

// Returns the bound of the loss, which is log-sum-exp minus a logit; both, and the logarithm, are
// rounded.
double loss_bound(const HeadShape& s, const Values& in) {
  double bound = 0;
  for (std::int64_t r = 0; r < s.R; ++r) {
    if (in[2][r] < 0) continue;
    const Row row = row_of(s, in, r);
    const double log_sum = std::abs(row.log_sum_exp) + std::log(static_cast<double>(s.V) + 1);
    bound += 2 * row.error + kExpUnits * kUnitF32 * log_sum;
  }
  return bound;
}

Values gradient_bounds(const HeadShape& s, const Rounding& rounding, const Values& in,
                       const Values& want) {
  Values bounds = {{loss_bound(s, in)},
                   std::vector<double>(s.R * s.C, 0.0),
                   std::vector<double>(s.V * s.C, 0.0)};
  for (std::int64_t r = 0; r < s.R; ++r) {
    if (in[2][r] < 0) continue;
    const Row row = row_of(s, in, r);
    const auto target = static_cast<std::int64_t>(in[2][r]);
    for (std::int64_t v = 0; v < s.V; ++v) {
      const double p = row.probability[v];
      const double difference = kScale * std::abs(v == target ? p - 1 : p);
      const double gradient = difference * row.slope[v];
      const double error = kScale * p * row.error * row.slope[v] + difference * row.slope_error[v] +
                           rounding.of(gradient) + 4 * kUnitF32 * gradient;
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

std::vector<double> logit_bounds(const HeadShape& s, const Values& in) {
  std::vector<double> bounds;
  for (std::int64_t r = 0; r < s.R; ++r) {
    const Row row = row_of(s, in, r);
    bounds.insert(bounds.end(), row.logit_error.begin(), row.logit_error.end());
  }
  return bounds;
}

// Every fifth row is not counted.
HostTensor targets_of(const HeadShape& s, Random& random) {
  HostTensor targets =
      HostTensor::random_indices(shape(s.R), random, static_cast<std::int32_t>(s.V));
  for (std::int64_t r = 3; r < s.R; r += 5) targets.set(r, r % 2 == 0 ? -1 : -100);
  return targets;
}

void set_outputs(OpCase& c, DType compute, const HeadShape& s, Wanted wanted) {
  const Output loss = {.dtype = DType::kF64, .shape = shape(1)};
  const Output logits = {.dtype = DType::kF32, .shape = shape(s.R, s.V)};
  switch (wanted) {
    case Wanted::kLoss:
      c.outputs = {loss};
      return;
    case Wanted::kLossAndGradients:
      c.outputs = {
          loss, {compute, shape(s.R, s.C)}, {DType::kF32, shape(s.V, s.C), OutputKind::kGradient}};
      return;
    case Wanted::kLogits:
      c.outputs = {logits};
      return;
    case Wanted::kLogitsAndLoss:
      c.outputs = {loss, logits};
  }
}

HeadLoss build(Wanted wanted, const HeadShape& s, const Views& in, const Views& out,
               GradientMode mode) {
  HeadLoss op;
  op.h = in[0];
  op.weight = in[1];
  op.gradient_scale = kScale;
  op.mode = mode;
  op.logit_scale = s.logit_scale;
  op.soft_cap = s.soft_cap;
  if (wanted == Wanted::kLogits) {
    op.logits = out[0];
    return op;
  }
  op.target = in[2];
  op.loss_sum = out[0].as<double>();
  if (wanted == Wanted::kLossAndGradients) {
    op.dh = out[1];
    op.dweight = out[2];
  } else if (wanted == Wanted::kLogitsAndLoss) {
    op.logits = out[1];
  }
  return op;
}

Values bounds_of(Wanted wanted, const HeadShape& s, const Rounding& rounding, const Values& in,
                 const Values& want) {
  switch (wanted) {
    case Wanted::kLoss:
      return {{loss_bound(s, in)}};
    case Wanted::kLossAndGradients:
      return gradient_bounds(s, rounding, in, want);
    case Wanted::kLogits:
      return {logit_bounds(s, in)};
    case Wanted::kLogitsAndLoss:
      break;
  }
  return {{loss_bound(s, in)}, logit_bounds(s, in)};
}

OpCase head_loss_case(DType compute, const HeadShape& s, Wanted wanted, Random& random) {
  OpCase c;
  c.name = fmt::format("head_loss R={} C={} V={} wanted={} {}", s.R, s.C, s.V,
                       static_cast<int>(wanted), s.map_name());
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.C), random, s.size));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random));
  c.inputs.push_back(targets_of(s, random));
  set_outputs(c, compute, s, wanted);
  set_op(c, &KernelTable::head_loss, &KernelTable::head_loss_workspace,
         [wanted, s](const Views& in, const Views& out, GradientMode mode) {
           return build(wanted, s, in, out, mode);
         });
  c.bounds = [wanted, s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return bounds_of(wanted, s, rounding, in, want);
  };
  return c;
}

}  // namespace

std::vector<OpCase> head_loss_cases(DType compute) {
  TERRACE_CHECK_LT(head_chunk_rows(kHeadLossShapes[4].V), kHeadLossShapes[4].R);
  Random random(8);
  std::vector<OpCase> cases;
  std::vector<HeadShape> shapes(std::begin(kHeadLossShapes), std::end(kHeadLossShapes));
  shapes.insert(shapes.end(), std::begin(kMappedShapes), std::end(kMappedShapes));
  for (const HeadShape& s : shapes) {
    for (const Wanted wanted :
         {Wanted::kLoss, Wanted::kLossAndGradients, Wanted::kLogits, Wanted::kLogitsAndLoss}) {
      cases.push_back(head_loss_case(compute, s, wanted, random));
    }
  }
  return cases;
}

}  // namespace terrace::test
