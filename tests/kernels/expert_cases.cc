#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tests/kernels/op_case.h"

// The ops of experts. Products have the bound of matmul_cases.cc: the rows of an expert are a
// product of their own. The softmax has the bounds of an exponential (kExpUnits), its argument's
// rounding and a sum of E terms.
namespace terrace::test {
namespace {

using HostTensors = std::vector<HostTensor>;

// How the slots are distributed.
enum class Routing : std::uint8_t {
  kMixed,       // at random
  kOneForAll,   // every row has the same experts
  kSomeUnused,  // the first and the last expert have no row
};

struct ExpertShape {
  std::int64_t R, E, k, N, K;
  Routing routing = Routing::kMixed;

  std::int64_t slots() const { return R * k; }
};

constexpr ExpertShape kExpertShapes[] = {
    {1, 4, 2, 5, 7},
    {37, 5, 2, 33, 40},
    {37, 5, 3, 33, 40, Routing::kOneForAll},
    {70, 9, 1, 17, 96, Routing::kSomeUnused},
    {150, 3, 3, 64, 31},
};

std::string name_of(const char* op, const ExpertShape& s) {
  return fmt::format("{} R={} E={} k={} N={} K={} routing={}", op, s.R, s.E, s.k, s.N, s.K,
                     static_cast<int>(s.routing));
}

// The choices of the rows, sorted: index, order, place and offsets.
struct Slots {
  HostTensor index, order, place, offsets;

  Slots(const ExpertShape& s, Random& random)
      : index(DType::kI32, shape(s.R, s.k)),
        order(DType::kI32, shape(s.slots())),
        place(DType::kI32, shape(s.R, s.k)),
        offsets(DType::kI32, shape(s.E + 1)) {
    for (std::int64_t r = 0; r < s.R; ++r) choose(s, r, random);
    std::int64_t at = 0;
    for (std::int64_t e = 0; e < s.E; ++e) {
      offsets.set(e, static_cast<double>(at));
      for (std::int64_t slot = 0; slot < s.slots(); ++slot) {
        if (index.at(slot) != static_cast<double>(e)) continue;
        order.set(at, static_cast<double>(slot));
        place.set(slot, static_cast<double>(at++));
      }
    }
    offsets.set(s.E, static_cast<double>(at));
  }

 private:
  void choose(const ExpertShape& s, std::int64_t r, Random& random) {
    std::vector<std::int64_t> experts;
    while (static_cast<std::int64_t>(experts.size()) < s.k) {
      const auto drawn = static_cast<std::int64_t>(random.below(static_cast<std::int32_t>(s.E)));
      const std::int64_t next = static_cast<std::int64_t>(experts.size());
      const std::int64_t e = s.routing == Routing::kOneForAll ? s.E - 1 - next : drawn;
      const bool is_unused = s.routing == Routing::kSomeUnused && (e == 0 || e == s.E - 1);
      if (!is_unused && std::ranges::find(experts, e) == experts.end()) experts.push_back(e);
    }
    std::ranges::sort(experts);
    for (std::int64_t j = 0; j < s.k; ++j) {
      index.set(r * s.k + j, static_cast<double>(experts[static_cast<std::size_t>(j)]));
    }
  }
};

std::size_t at(auto index) { return static_cast<std::size_t>(index); }

double expert_sum_bound(std::int64_t terms, double magnitude) {
  return static_cast<double>(terms + 2) * kUnitF32 * magnitude;
}

// The weights of the experts lie apart by more than their size, as gate | up lie beside down.
constexpr std::int64_t kBetween = 13;

StridedRows weights_of(const TensorView& all, const ExpertShape& s) {
  return columns_of(all, 0, s.N * s.K);
}

ExpertRows rows_of(const Views& in, const ExpertShape& s) { return {in[0], in[1], s.k}; }

// Returns the row of a side that the sorted row i reads.
std::size_t row_of(const Values& in, const ExpertShape& s, bool is_by_row, std::size_t i) {
  return is_by_row ? at(in[0][i]) / static_cast<std::size_t>(s.k) : i;
}

// Returns the expert of the sorted row i.
std::size_t expert_of(const Values& in, std::size_t i) {
  std::size_t e = 0;
  while (static_cast<double>(i) >= in[1][e + 1]) ++e;
  return e;
}

// The forward product, or the gradient of its input: out[i, o] = the sum over d of side[row, d] *
// weight.
OpCase product_case(DType compute, const ExpertShape& s, bool is_forward, bool is_by_row,
                    Random& random) {
  const Slots slots(s, random);
  const std::int64_t depth = is_forward ? s.K : s.N;
  const std::int64_t outputs = is_forward ? s.N : s.K;
  OpCase c;
  c.name = name_of(is_forward ? "expert_forward" : "expert_backward_input", s) +
           fmt::format(" by_row={}", is_by_row);
  c.inputs =
      HostTensors{slots.order, slots.offsets,
                  HostTensor::random(compute, shape(is_by_row ? s.R : s.slots(), depth), random),
                  HostTensor::random(compute, shape(s.E, s.N * s.K + kBetween), random)};
  c.outputs = {{.dtype = compute, .shape = shape(s.slots(), outputs)}};
  if (is_forward) {
    set_op(c, &KernelTable::expert_forward, &KernelTable::expert_forward_workspace,
           [=](const Views& in, const Views& out, GradientMode) {
             return ExpertForward{rows_of(in, s), {in[2], is_by_row}, weights_of(in[3], s), out[0]};
           });
  } else {
    set_op(c, &KernelTable::expert_backward_input, &KernelTable::expert_backward_input_workspace,
           [=](const Views& in, const Views& out, GradientMode) {
             return ExpertBackwardInput{
                 rows_of(in, s), {in[2], is_by_row}, weights_of(in[3], s), out[0]};
           });
  }
  c.bounds = [=, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.slots()); ++i) {
      const double* side = &in[2][row_of(in, s, is_by_row, i) * static_cast<std::size_t>(depth)];
      const double* weight =
          &in[3][expert_of(in, i) * static_cast<std::size_t>(s.N * s.K + kBetween)];
      for (std::int64_t o = 0; o < outputs; ++o) {
        double size = 0;
        for (std::int64_t d = 0; d < depth; ++d) {
          size += std::abs(side[d] * weight[is_forward ? o * s.K + d : d * s.K + o]);
        }
        const double sum = expert_sum_bound(depth, size);
        const double value = want[0][i * static_cast<std::size_t>(outputs) + at(o)];
        bounds[0].push_back(sum + rounding.of(std::abs(value) + sum));
      }
    }
    return bounds;
  };
  return c;
}

// The gradient of the experts' weights, written twice: side by side, as the gradients of an
// expert's several matrices lie.
OpCase weight_case(DType compute, const ExpertShape& s, bool dy_is_by_row, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("expert_backward_weight", s) + fmt::format(" dy_by_row={}", dy_is_by_row);
  c.inputs =
      HostTensors{slots.order, slots.offsets,
                  HostTensor::random(compute, shape(dy_is_by_row ? s.R : s.slots(), s.N), random),
                  HostTensor::random(compute, shape(dy_is_by_row ? s.slots() : s.R, s.K), random)};
  const std::int64_t elements = s.N * s.K;
  c.outputs = {
      {.dtype = DType::kF32, .shape = shape(s.E, 2 * elements), .kind = OutputKind::kGradient}};
  const auto op_of = [=](const Views& in, const Views& out, GradientMode mode, std::int64_t first) {
    return ExpertBackwardWeight{rows_of(in, s),
                                {in[2], dy_is_by_row},
                                {in[3], !dy_is_by_row},
                                columns_of(out[0], first, elements),
                                mode};
  };
  set_op(c, &KernelTable::expert_backward_weight, &KernelTable::expert_backward_weight_workspace,
         [=](const Views& in, const Views& out, GradientMode mode) {
           return op_of(in, out, mode, 0);
         });
  c.run = [=](const KernelTable& table, const KernelContext& context, const Views& in,
              const Views& out, GradientMode mode) {
    for (const std::int64_t first : {elements, std::int64_t{0}}) {
      table.expert_backward_weight(context, op_of(in, out, mode, first));
    }
  };
  c.bounds = [=](const Values& in, const Values&) {
    Values bounds(1);
    for (std::size_t e = 0; e < at(s.E); ++e) {
      const std::size_t begin = at(in[1][e]);
      const std::size_t end = at(in[1][e + 1]);
      for (std::int64_t i = 0; i < 2 * elements; ++i) {
        const std::int64_t o = i % elements;
        double size = 0;
        for (std::size_t row = begin; row < end; ++row) {
          const double dy = in[2][row_of(in, s, dy_is_by_row, row) * at(s.N) + at(o / s.K)];
          const double x = in[3][row_of(in, s, !dy_is_by_row, row) * at(s.K) + at(o % s.K)];
          size += std::abs(dy * x);
        }
        bounds[0].push_back(expert_sum_bound(static_cast<std::int64_t>(end - begin), size));
      }
    }
    return bounds;
  };
  return c;
}

// --- the choice ---------------------------------------------------------------------------------

std::string name_of(const char* op, const ExpertShape& s, const ExpertRule& rule) {
  std::string name = fmt::format("{} R={} E={} k={} normalizes={} rounds={}", op, s.R, s.E, s.k,
                                 rule.normalizes, rule.rounds_weights);
  if (rule.scores == ExpertScores::kSoftmax) return name;
  return name + fmt::format(" sigmoids scale={} groups={}/{}", rule.scale, rule.chosen_groups,
                            rule.groups);
}

// Returns a rule with sigmoids, and with groups where the experts are several.
ExpertRule sigmoid_rule(const ExpertShape& s, bool normalizes) {
  ExpertRule rule = {.normalizes = normalizes, .scores = ExpertScores::kSigmoid, .scale = 1.75F};
  if (s.E % 2 == 0) rule.groups = 2;
  if (s.E == 9) rule.groups = 3;
  rule.chosen_groups = std::max(1, rule.groups - 1);
  return rule;
}

// The relative error of a probability: of its exponential, whose argument is a rounded difference
// of logits of at most 8 each, and of a sum of the exponentials, all positive. A sigmoid has the
// error of an exponential of an exact argument and two roundings, so its share of a sum of sigmoids
// has less.
double probability_units(const ExpertShape& s) {
  return units(s.E + 4) + 2 * kExpUnits * kUnitF32 + 2 * 16 * kUnitF32;
}

OpCase choice_case(DType compute, const ExpertShape& s, const ExpertRule& rule, Random& random) {
  OpCase c;
  c.name = name_of("choose_experts", s, rule);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.R, s.E), random, 8.0)};
  c.inputs[0].set(s.E - 1, c.inputs[0].at(0));  // a tie: the lower one is chosen
  const bool has_bias = rule.scores == ExpertScores::kSigmoid;
  if (has_bias) c.inputs.push_back(HostTensor::random(compute, shape(3, s.E), random));
  c.outputs = {{.dtype = DType::kI32, .shape = shape(s.R, s.k)},
               {.dtype = DType::kF32, .shape = shape(s.R, s.k)}};
  set_op(c, &KernelTable::choose_experts,
         [rule, has_bias](const Views& in, const Views& out, GradientMode) {
           return ChooseExperts{in[0], out[0], out[1], rule, has_bias ? in[1] : TensorView{}};
         });
  c.bounds = [=, rounding = rounding_to(compute)](const Values&, const Values& want) {
    Values bounds = {std::vector<double>(want[0].size(), 0.0), {}};
    for (const double weight : want[1]) {
      const double error = probability_units(s) * weight;
      bounds[1].push_back(error + (rule.rounds_weights ? rounding.of(weight + error) : 0));
    }
    return bounds;
  };
  return c;
}

OpCase choice_backward_case(DType compute, const ExpertShape& s, const ExpertRule& rule,
                            Random& random) {
  OpCase c;
  c.name = name_of("choose_experts_backward", s, rule);
  const Slots slots(s, random);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.R, s.E), random, 8.0), slots.index,
                         HostTensor::random(DType::kF32, shape(s.R, s.k), random)};
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.E)}};
  set_op(c, &KernelTable::choose_experts_backward,
         [rule](const Views& in, const Views& out, GradientMode) {
           return ChooseExpertsBackward{in[0], in[1], in[2], out[0], rule};
         });
  // A gradient is p (g - mean), with |g| and |mean| of at most 1: twice the error of p, and of the
  // mean that of k products and a sum. p is at most 1. With sigmoids there is one factor more, of
  // at most 1, and the scale.
  c.bounds = [=, rounding = rounding_to(compute)](const Values&, const Values& want) {
    Values bounds(1);
    for (const double value : want[0]) {
      const double error = rule.scale * (4 * probability_units(s) + 2 * units(s.k + 4));
      bounds[0].push_back(error + rounding.of(std::abs(value) + error));
    }
    return bounds;
  };
  return c;
}

OpCase sort_case(const ExpertShape& s, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("sort_slots", s);
  c.inputs = HostTensors{slots.index};
  c.outputs = {{.dtype = DType::kI32, .shape = shape(s.slots())},
               {.dtype = DType::kI32, .shape = shape(s.R, s.k)},
               {.dtype = DType::kI32, .shape = shape(s.E + 1)}};
  set_op(c, &KernelTable::sort_slots, &KernelTable::sort_slots_workspace,
         [](const Views& in, const Views& out, GradientMode) {
           return SortSlots{in[0], out[0], out[1], out[2]};
         });
  return c;  // the bits of the reference
}

// --- sums ---------------------------------------------------------------------------------------

OpCase sum_case(DType compute, const ExpertShape& s, bool is_weighted, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("sum_expert_rows", s) + fmt::format(" weighted={}", is_weighted);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.slots(), s.N), random), slots.place,
                         HostTensor::random(DType::kF32, shape(s.R, s.k), random)};
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.N)}};
  set_op(c, &KernelTable::sum_expert_rows,
         [is_weighted](const Views& in, const Views& out, GradientMode) {
           return SumExpertRows{in[0], in[1], is_weighted ? in[2] : TensorView{}, out[0]};
         });
  return c;  // the order of its additions is part of the op
}

// dweight is a sum of I products in any order; the rest is one product, rounded once.
OpCase weigh_case(DType compute, const ExpertShape& s, bool has_weighted, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("weigh_expert_rows", s) + fmt::format(" weighted={}", has_weighted);
  const Shape sorted = shape(s.slots(), s.N);
  c.inputs = HostTensors{slots.order, HostTensor::random(DType::kF32, shape(s.R, s.k), random),
                         HostTensor::random(compute, sorted, random),
                         HostTensor::random(compute, sorted, random)};
  c.outputs = {{.dtype = DType::kF32, .shape = shape(s.R, s.k)},
               {.dtype = compute, .shape = sorted, .kind = OutputKind::kInPlace, .same_as = 2}};
  if (has_weighted) c.outputs.push_back({.dtype = compute, .shape = sorted});
  set_op(c, &KernelTable::weigh_expert_rows,
         [has_weighted](const Views& in, const Views& out, GradientMode) {
           return WeighExpertRows{.order = in[0],
                                  .weight = in[1],
                                  .dh = out[1],
                                  .act = in[3],
                                  .dweight = out[0],
                                  .dact = out[1],
                                  .weighted = has_weighted ? out[2] : TensorView{}};
         });
  c.bounds = [=, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    Values bounds(want.size());
    bounds[0].resize(want[0].size());
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      double size = 0;
      for (std::size_t n = i * at(s.N); n < (i + 1) * at(s.N); ++n) {
        size += std::abs(in[2][n] * in[3][n]);
      }
      bounds[0][at(in[0][i])] = expert_sum_bound(s.N, size);
    }
    for (std::size_t k = 1; k < want.size(); ++k) {
      for (const double value : want[k]) {
        const double error = 2 * kUnitF32 * std::abs(value);
        bounds[k].push_back(error + rounding.of(std::abs(value) + error));
      }
    }
    return bounds;
  };
  return c;
}

// The rows of the middle experts alone; the others keep what they had.
OpCase weigh_range_case(DType compute, const ExpertShape& s, Random& random) {
  OpCase c = weigh_case(compute, s, true, random);
  c.name += " range";
  HostTensor range(DType::kI32, shape(2));
  range.set(0, static_cast<double>(s.slots() / 3));
  range.set(1, static_cast<double>(s.slots() - s.slots() / 4));
  c.inputs.push_back(HostTensor::random(DType::kF32, shape(s.R, s.k), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.slots(), s.N), random));
  c.inputs.push_back(range);
  c.outputs[0] = {DType::kF32, shape(s.R, s.k), OutputKind::kInPlace, 4};
  c.outputs[2] = {compute, shape(s.slots(), s.N), OutputKind::kInPlace, 5};
  set_op(c, &KernelTable::weigh_expert_rows, [](const Views& in, const Views& out, GradientMode) {
    return WeighExpertRows{.order = in[0],
                           .weight = in[1],
                           .dh = out[1],
                           .act = in[3],
                           .dweight = out[0],
                           .dact = out[1],
                           .weighted = out[2],
                           .row_range = in[6]};
  });
  return c;
}

// --- the gate of an expert of all rows ----------------------------------------------------------

// The error of a row's share: of an exponential and two operations, and the share's own rounding.
double share_bound(DType compute, double logit) {
  const double share = 1 / (1 + std::exp(-logit));
  const double error = share * (kExpUnits + 4) * kUnitF32;
  return error + rounding_to(compute).of(share + error);
}

OpCase gate_case(DType compute, const ExpertShape& s, Random& random) {
  OpCase c;
  c.name = name_of("gate_rows", s);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.R, s.N), random),
                         HostTensor::random(compute, shape(s.R, 1), random, 6.0)};
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.N)}};
  set_op(c, &KernelTable::gate_rows, [](const Views& in, const Views& out, GradientMode) {
    return GateRows{in[0], in[1], out[0]};
  });
  c.bounds = [=](const Values& in, const Values& want) {
    Values bounds(1);
    for (std::size_t i = 0; i < want[0].size(); ++i) {
      const double share = share_bound(compute, in[1][i / at(s.N)]);
      const double error = share * std::abs(in[0][i]) + 2 * kUnitF32 * std::abs(want[0][i]);
      bounds[0].push_back(error + rounding_to(compute).of(std::abs(want[0][i]) + error));
    }
    return bounds;
  };
  return c;
}

OpCase gate_backward_case(DType compute, const ExpertShape& s, Random& random) {
  OpCase c;
  c.name = name_of("gate_rows_backward", s);
  c.inputs = HostTensors{HostTensor::random(compute, shape(s.R, s.N), random),
                         HostTensor::random(compute, shape(s.R, 1), random, 6.0),
                         HostTensor::random(compute, shape(s.R, s.N), random)};
  c.outputs = {{.dtype = compute, .shape = shape(s.R, s.N)},
               {.dtype = compute, .shape = shape(s.R, 1)}};
  set_op(c, &KernelTable::gate_rows_backward, [](const Views& in, const Views& out, GradientMode) {
    return GateRowsBackward{in[0], in[1], in[2], out[0], out[1]};
  });
  // s (1 - s) is at most a quarter, and moves no more than s does.
  c.bounds = [=](const Values& in, const Values& want) {
    Values bounds(2);
    const auto round_up = [&](double value, double error) {
      return error + rounding_to(compute).of(std::abs(value) + error);
    };
    for (std::size_t i = 0; i < want[0].size(); ++i) {
      const double share = share_bound(compute, in[1][i / at(s.N)]);
      const double error = share * std::abs(in[2][i]) + 2 * kUnitF32 * std::abs(want[0][i]);
      bounds[0].push_back(round_up(want[0][i], error));
    }
    for (std::size_t r = 0; r < want[1].size(); ++r) {
      double sum = 0;
      double size = 0;
      for (std::size_t i = r * at(s.N); i < (r + 1) * at(s.N); ++i) {
        sum += in[0][i] * in[2][i];
        size += std::abs(in[0][i] * in[2][i]);
      }
      const double of_share = share_bound(compute, in[1][r]) + 2 * kUnitF32;
      const double of_sum = expert_sum_bound(s.N, size);
      const double error = of_share * (std::abs(sum) + of_sum) + of_sum / 4;
      bounds[1].push_back(round_up(want[1][r], error + 2 * kUnitF32 * std::abs(want[1][r])));
    }
    return bounds;
  };
  return c;
}

// --- biases -------------------------------------------------------------------------------------

// Biases lie apart by more than their size.
StridedRows biases_of(const TensorView& all, const ExpertShape& s) {
  return columns_of(all, 3, s.N);
}
Shape shape_of_biases(const ExpertShape& s) { return shape(s.E, s.N + kBetween); }

OpCase add_bias_case(DType compute, const ExpertShape& s, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("add_expert_bias", s);
  c.inputs = HostTensors{slots.order, slots.offsets,
                         HostTensor::random(compute, shape_of_biases(s), random),
                         HostTensor::random(compute, shape(s.slots(), s.N), random)};
  c.outputs = {{compute, shape(s.slots(), s.N), OutputKind::kInPlace, 3}};
  set_op(c, &KernelTable::add_expert_bias, [s](const Views& in, const Views& out, GradientMode) {
    return AddExpertBias{rows_of(in, s), biases_of(in[2], s), out[0]};
  });
  return c;  // one sum, rounded once
}

// The gradient of biases: of a sorted dy, or of a dy by row with weights. A term is a product that
// may be rounded.
OpCase bias_gradient_case(DType compute, const ExpertShape& s, bool is_weighted, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("expert_bias_gradient", s) + fmt::format(" weighted={}", is_weighted);
  c.inputs =
      HostTensors{slots.order, slots.offsets,
                  HostTensor::random(compute, shape(is_weighted ? s.R : s.slots(), s.N), random),
                  HostTensor::random(DType::kF32, shape(s.R, s.k), random)};
  c.outputs = {{.dtype = DType::kF32, .shape = shape(s.E, s.N), .kind = OutputKind::kGradient}};
  set_op(c, &KernelTable::expert_bias_gradient,
         [=](const Views& in, const Views& out, GradientMode mode) {
           return ExpertBiasGradient{rows_of(in, s),
                                     {in[2], is_weighted},
                                     is_weighted ? in[3] : TensorView{},
                                     whole_rows(out[0]),
                                     mode};
         });
  c.bounds = [=](const Values& in, const Values&) {
    Values bounds = {std::vector<double>(at(s.E * s.N))};
    for (std::size_t i = 0; i < at(s.slots()); ++i) {
      const std::size_t e = expert_of(in, i);
      const auto rows = static_cast<std::int64_t>(in[1][e + 1] - in[1][e]);
      const double weight = is_weighted ? std::abs(in[3][at(in[0][i])]) : 1;
      for (std::size_t n = 0; n < at(s.N); ++n) {
        const double dy = in[2][row_of(in, s, is_weighted, i) * at(s.N) + n];
        bounds[0][e * at(s.N) + n] += expert_sum_bound(rows + 1, weight * std::abs(dy));
      }
    }
    return bounds;
  };
  return c;
}

OpCase bias_share_case(DType compute, const ExpertShape& s, Random& random) {
  const Slots slots(s, random);
  OpCase c;
  c.name = name_of("add_bias_share", s);
  c.inputs =
      HostTensors{slots.order, slots.offsets, HostTensor::random(compute, shape(s.R, s.N), random),
                  HostTensor::random(compute, shape_of_biases(s), random),
                  HostTensor::random(DType::kF32, shape(s.R, s.k), random)};
  c.outputs = {{DType::kF32, shape(s.R, s.k), OutputKind::kInPlace, 4}};
  set_op(c, &KernelTable::add_bias_share, [s](const Views& in, const Views& out, GradientMode) {
    return AddBiasShare{rows_of(in, s), {in[2], true}, biases_of(in[3], s), out[0]};
  });
  c.bounds = [=](const Values& in, const Values&) {
    Values bounds = {std::vector<double>(at(s.slots()))};
    for (std::size_t i = 0; i < at(s.slots()); ++i) {
      const double* dy = &in[2][row_of(in, s, true, i) * at(s.N)];
      const double* bias = &in[3][expert_of(in, i) * at(s.N + kBetween) + 3];
      double size = std::abs(in[4][at(in[0][i])]);
      for (std::size_t n = 0; n < at(s.N); ++n) size += std::abs(dy[n] * bias[n]);
      bounds[0][at(in[0][i])] = expert_sum_bound(s.N + 1, size);
    }
    return bounds;
  };
  return c;
}

}  // namespace

std::vector<OpCase> expert_cases(DType compute) {
  Random random(31);
  std::vector<OpCase> cases;
  for (const ExpertShape& s : kExpertShapes) {
    for (const bool flag : {false, true}) {
      cases.push_back(product_case(compute, s, true, flag, random));
      cases.push_back(product_case(compute, s, false, flag, random));
      cases.push_back(weight_case(compute, s, flag, random));
      cases.push_back(sum_case(compute, s, flag, random));
      cases.push_back(weigh_case(compute, s, flag, random));
      for (const bool rounds : {false, true}) {
        const ExpertRule rule = {.normalizes = flag, .rounds_weights = rounds};
        cases.push_back(choice_case(compute, s, rule, random));
      }
      cases.push_back(choice_backward_case(compute, s, {.normalizes = flag}, random));
      cases.push_back(choice_case(compute, s, sigmoid_rule(s, flag), random));
      cases.push_back(choice_backward_case(compute, s, sigmoid_rule(s, flag), random));
      cases.push_back(bias_gradient_case(compute, s, flag, random));
    }
    cases.push_back(sort_case(s, random));
    cases.push_back(weigh_range_case(compute, s, random));
    cases.push_back(gate_case(compute, s, random));
    cases.push_back(gate_backward_case(compute, s, random));
    cases.push_back(add_bias_case(compute, s, random));
    cases.push_back(bias_share_case(compute, s, random));
  }
  std::ranges::move(router_cases(compute), std::back_inserter(cases));
  return cases;
}

}  // namespace terrace::test
