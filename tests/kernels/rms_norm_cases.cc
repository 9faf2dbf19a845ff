#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/norm_bounds.h"
#include "tests/kernels/op_case.h"

// The RMS norm: its forms, groups of columns of wider rows, and a width that is divided over parts.
namespace terrace::test {
namespace {

using enum RmsNormForm;
constexpr RmsNormForm kForms[] = {kRoundThenMultiply, kMultiplyThenRound, kMultiplyByOnePlus};

// R rows of a matrix with `before` columns, `groups` groups of C columns, and `after` columns.
struct RmsShape {
  std::int64_t R, C;
  std::int64_t groups = 1, before = 0, after = 0;

  std::int64_t width() const { return groups * C; }
  std::int64_t columns() const { return before + width() + after; }
  std::int64_t units() const { return R * groups; }
  // Return where column c of a unit is in the matrix, and which unit an element of the matrix
  // belongs to; -1: none.
  std::int64_t place(std::int64_t unit, std::int64_t c) const {
    return unit / groups * columns() + before + unit % groups * C + c;
  }
};

// Widths for every number of threads that may share a row, for elements of 16 and of 32 bits, with
// whole packs and without, and more rows than blocks share at once.
constexpr RmsShape kWholeRows[] = {{1, 1},     {37, 100},  {5, 64},   {130, 33}, {2, 500},
                                   {9, 764},   {3, 768},   {2, 1000}, {3, 1025}, {2, 1028},
                                   {2, 2048},  {2200, 16}, {2, 3000}, {2, 5000}, {1, 8200},
                                   {3, 16400}, {1, 32768}};
// Heads within wider rows that have other columns too; on boundaries of packs and not.
constexpr RmsShape kGroups[] = {{45, 16, 3, 8, 16}, {7, 64, 2, 64, 0},  {3, 128, 3, 0, 24},
                                {2, 256, 2, 8, 8},  {5, 20, 4, 3, 5},   {9, 100, 1, 4, 0},
                                {2, 1028, 2, 0, 4}, {3, 2048, 1, 8, 8}, {750, 8, 3, 0, 1}};
// Whole rows on which the other forms are tested.
constexpr RmsShape kFormRows[] = {{37, 100}, {9, 768}, {2, 1025}, {2, 4096}};

struct RmsCase {
  RmsShape s;
  RmsNormForm form = kRoundThenMultiply;
  bool with_residual = false;
  Rounding rounding;

  double weight_offset() const { return form == kMultiplyByOnePlus ? 1 : 0; }
  bool rounds_first() const { return form == kRoundThenMultiply; }
};

StridedRows own_columns(const TensorView& matrix, const RmsShape& s) {
  return columns_of(matrix, s.before, s.width());
}

std::string name_of(const char* op, const RmsCase& k) {
  std::string name = fmt::format("{} R={} C={}", op, k.s.R, k.s.C);
  if (k.s.columns() != k.s.C) {
    name += fmt::format(" groups={} in {} columns", k.s.groups, k.s.columns());
  }
  if (!k.rounds_first()) name += fmt::format(" form={}", static_cast<int>(k.form));
  return name + (k.with_residual ? " residual" : "");
}

HostTensor random_matrix(DType compute, const RmsShape& s, Random& random, double scale = 1.0) {
  return HostTensor::random(compute, shape(s.R, s.columns()), random, scale);
}

// Returns weights far from 0 and from 1.
HostTensor random_weight(DType compute, std::int64_t C, Random& random) {
  HostTensor weight(compute, shape(C));
  for (std::int64_t c = 0; c < C; ++c) weight.set(c, 3 + random.uniform());
  return weight;
}

// Returns the bound of y where the forward gives `want`.
double forward_bound(const RmsCase& k, std::int64_t terms, double weight, double want) {
  // Rounded twice: the normed value, and its product with the weight.
  if (k.rounds_first()) {
    const double relative = (rstd_error(terms) + 2.01 * k.rounding.unit) * std::abs(want);
    return relative + k.rounding.absolute * (1.01 * std::abs(weight) + 1);
  }
  const double error = (rstd_error(terms) + 4 * kUnitF32) * std::abs(want);
  return error + k.rounding.of(std::abs(want) + error);
}

// y begins as a random matrix, whose other columns have to stay as they are.
OpCase forward_case(DType compute, const RmsCase& k, Random& random) {
  const RmsShape s = k.s;
  OpCase c;
  c.name = name_of("rms_norm_forward", k);
  c.inputs.push_back(random_matrix(compute, s, random, 3.0));
  c.inputs.push_back(random_weight(compute, s.C, random));
  c.inputs.push_back(random_matrix(compute, s, random));
  c.outputs = {{compute, shape(s.R, s.columns()), OutputKind::kInPlace, 2},
               {.dtype = DType::kF32, .shape = shape(s.units())}};
  set_op(c, &KernelTable::rms_norm_forward, [k](const Views& in, const Views& out, GradientMode) {
    return RmsNormForward{.x = own_columns(in[0], k.s),
                          .weight = in[1],
                          .y = own_columns(out[0], k.s),
                          .rstd = out[1],
                          .form = k.form};
  });
  c.bounds = [k](const Values& in, const Values& want) {
    Values bounds = {std::vector<double>(want[0].size(), 0.0), {}};
    for (std::int64_t u = 0; u < k.s.units(); ++u) {
      for (std::int64_t i = 0; i < k.s.C; ++i) {
        const std::int64_t at = k.s.place(u, i);
        bounds[0][at] = forward_bound(k, k.s.C, in[1][i], want[0][at]);
      }
      bounds[1].push_back(rstd_error(k.s.C) * want[1][u]);
    }
    return bounds;
  };
  return c;
}

// Returns rstd of every unit in fp32, as a forward would have left it.
HostTensor rstd_of(const HostTensor& x, const RmsShape& s) {
  HostTensor rstd(DType::kF32, shape(s.units()));
  for (std::int64_t u = 0; u < s.units(); ++u) {
    double squares = 0;
    for (std::int64_t c = 0; c < s.C; ++c) squares += std::pow(x.at(s.place(u, c)), 2);
    rstd.set(u, 1 / std::sqrt(squares / static_cast<double>(s.C) + 1e-5));
  }
  return rstd;
}

// Inputs: dy, x, weight, rstd, dresidual, and dx as it is before. dweight is a sum over all units.
Values backward_bounds(const RmsCase& k, const Values& in, const Values& want) {
  const RmsShape& s = k.s;
  Values bounds = {std::vector<double>(want[0].size(), 0.0), std::vector<double>(s.C, 0.0)};
  for (std::int64_t u = 0; u < s.units(); ++u) {
    const std::int64_t begin = s.place(u, 0);
    const NormBackwardRow row(
        {&in[0][begin], &in[1][begin], in[2].data(), 0.0, in[3][u], k.weight_offset()}, s.C);
    for (std::int64_t c = 0; c < s.C; ++c) {
      const double residual = k.with_residual ? std::abs(in[4][begin + c]) : 0.0;
      const double sum = slack_units(s.C) * row.size(c, false) + kUnitF32 * residual;
      bounds[0][begin + c] = sum + k.rounding.of(std::abs(want[0][begin + c]) + sum);
      // The normed value may be the rounded one that the forward used.
      const double rounded = k.rounds_first() ? k.rounding.of(row.normed(c)) : 0.0;
      bounds[1][c] +=
          (slack_units(s.units()) * row.normed(c) + rounded) * std::abs(in[0][begin + c]);
    }
  }
  return bounds;
}

std::vector<HostTensor> backward_inputs(DType compute, const RmsCase& k, Random& random) {
  std::vector<HostTensor> inputs;
  inputs.push_back(random_matrix(compute, k.s, random));       // dy
  inputs.push_back(random_matrix(compute, k.s, random, 3.0));  // x
  inputs.push_back(random_weight(compute, k.s.C, random));
  inputs.push_back(rstd_of(inputs[1], k.s));
  inputs.push_back(random_matrix(compute, k.s, random));  // dresidual
  inputs.push_back(random_matrix(compute, k.s, random));  // dx before
  return inputs;
}

RmsNormBackward backward_op(const RmsCase& k, const Views& in, const Views& out,
                            GradientMode mode) {
  return {.dy = own_columns(in[0], k.s),
          .x = own_columns(in[1], k.s),
          .weight = in[2],
          .rstd = in[3],
          .dresidual = k.with_residual ? own_columns(in[4], k.s) : StridedRows{},
          .dx = own_columns(out[0], k.s),
          .dweight = out[1],
          .form = k.form,
          .mode = mode};
}

void use_workspace(OpCase& c, std::int64_t units, std::int64_t width) {
  c.workspace_bytes = [units, width](const KernelTable& table, const Views&, const Views&,
                                     GradientMode, int workers) {
    return table.norm_backward_workspace(units, width, workers);
  };
}

// The operand whose memory dx uses.
enum class InPlace : std::uint8_t { kNone, kResidual, kGradient };

OpCase backward_case(DType compute, const RmsCase& k, InPlace in_place, Random& random) {
  OpCase c;
  c.name = name_of("rms_norm_backward", k);
  c.inputs = backward_inputs(compute, k, random);
  std::size_t before = 5;
  if (in_place == InPlace::kResidual) before = 4;
  if (in_place == InPlace::kGradient) before = 0;
  if (in_place != InPlace::kNone) c.name += fmt::format(" in place of {}", before);
  c.outputs.push_back({compute, shape(k.s.R, k.s.columns()), OutputKind::kInPlace, before});
  c.outputs.push_back({DType::kF32, shape(k.s.C), OutputKind::kGradient});
  set_op(c, &KernelTable::rms_norm_backward,
         [k, in_place](const Views& in, const Views& out, GradientMode mode) {
           RmsNormBackward op = backward_op(k, in, out, mode);
           if (in_place == InPlace::kResidual) op.dresidual = op.dx;
           if (in_place == InPlace::kGradient) op.dy = op.dx;
           return op;
         });
  use_workspace(c, k.s.units(), k.s.C);
  c.bounds = [k](const Values& in, const Values& want) { return backward_bounds(k, in, want); };
  return c;
}

// --- exact cases

// A row of x has as many 1s as 7s, so its mean square is 25 and rstd is the fp32 next to 1/5,
// whatever the order of additions. Only single products are left, and the form fixes how they are
// rounded, so results are compared bit for bit.
HostTensor ones_and_sevens(DType compute, std::int64_t R, std::int64_t C, Random& random) {
  HostTensor x(compute, shape(R, C));
  for (std::int64_t i = 0; i < R * C; ++i) {
    x.set(i, (i % 2 == 0 ? 1 : 7) * (random.below(2) == 0 ? 1 : -1));
  }
  return x;
}

OpCase exact_forward_case(DType compute, RmsNormForm form, Random& random) {
  OpCase c;
  c.name = fmt::format("rms_norm_forward exact form={}", static_cast<int>(form));
  c.inputs.push_back(ones_and_sevens(compute, 3, 96, random));
  c.inputs.push_back(random_weight(compute, 96, random));
  c.outputs = {{.dtype = compute, .shape = shape(3, 96)},
               {.dtype = DType::kF32, .shape = shape(3)}};
  set_op(c, &KernelTable::rms_norm_forward,
         [form](const Views& in, const Views& out, GradientMode) {
           return RmsNormForward{.x = whole_rows(in[0]),
                                 .weight = in[1],
                                 .y = whole_rows(out[0]),
                                 .rstd = out[1],
                                 .epsilon = 0.0F,
                                 .form = form};
         });
  return c;
}

// There is one row, so dweight is a single product. The residual is so large that the rest of dx is
// lost in it.
OpCase exact_backward_case(DType compute, RmsNormForm form, Random& random) {
  OpCase c;
  c.name = fmt::format("rms_norm_backward exact form={}", static_cast<int>(form));
  c.inputs.push_back(HostTensor::random(compute, shape(1, 96), random));
  c.inputs.push_back(ones_and_sevens(compute, 1, 96, random));
  c.inputs.push_back(random_weight(compute, 96, random));
  c.inputs.emplace_back(DType::kF32, shape(1));
  c.inputs.back().set(0, 0.2);
  c.inputs.emplace_back(compute, shape(1, 96));
  for (std::int64_t i = 0; i < 96; ++i) {
    c.inputs.back().set(i, compute == DType::kF16 ? 0x1.0p15 : 0x1.0p30);
  }
  c.outputs.push_back({compute, shape(1, 96)});
  c.outputs.push_back({DType::kF32, shape(96), OutputKind::kGradient});
  const RmsCase k{.s = {1, 96}, .form = form, .with_residual = true, .rounding = {}};
  set_op(c, &KernelTable::rms_norm_backward,
         [k](const Views& in, const Views& out, GradientMode mode) {
           return backward_op(k, in, out, mode);
         });
  use_workspace(c, 1, 96);
  return c;
}

// --- a divided width

// The columns that a part has. Where the parts are not equal, the first ones have one more.
struct PartColumns {
  std::int64_t begin, width;
};
PartColumns part_columns(std::int64_t C, std::int64_t parts, std::int64_t p) {
  const std::int64_t rest = C % parts;
  const std::int64_t width = C / parts + (p < rest ? 1 : 0);
  return {C / parts * p + std::min(p, rest), width};
}

TensorView elements_of(const TensorView& tensor, std::int64_t begin, std::int64_t count) {
  return view(tensor.data + static_cast<std::size_t>(begin) * size_of(tensor.dtype), tensor.dtype,
              count);
}

// Every part sums its columns, then norms them. The results must equal the whole norm's.
OpCase divided_forward_case(DType compute, const RmsCase& k, std::int64_t parts, Random& random) {
  OpCase c = forward_case(compute, k, random);
  c.name += fmt::format(" parts={}", parts);
  c.outputs.push_back({.dtype = DType::kF32, .shape = shape(parts, k.s.R)});
  c.run = [k, parts](const KernelTable& table, const KernelContext& context, const Views& in,
                     const Views& out, GradientMode) {
    const auto columns = [&](const TensorView& matrix, const PartColumns& part) {
      return columns_of(matrix, k.s.before + part.begin, part.width);
    };
    for (std::int64_t p = 0; p < parts; ++p) {
      const PartColumns part = part_columns(k.s.C, parts, p);
      table.row_squares(context, {columns(in[0], part), elements_of(out[2], p * k.s.R, k.s.R)});
    }
    for (std::int64_t p = 0; p < parts; ++p) {
      const PartColumns part = part_columns(k.s.C, parts, p);
      table.rms_norm_forward(context, {.x = columns(in[0], part),
                                       .weight = elements_of(in[1], part.begin, part.width),
                                       .y = columns(out[0], part),
                                       .rstd = out[1],
                                       .form = k.form,
                                       .squares = out[2],
                                       .total_width = k.s.C});
    }
  };
  c.bounds = [k, parts, whole = c.bounds](const Values& in, const Values& want) {
    Values bounds = whole({in[0], in[1], in[2]}, {want[0], want[1]});
    bounds.emplace_back();
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t width = part_columns(k.s.C, parts, p).width;
      for (std::int64_t r = 0; r < k.s.R; ++r) {
        bounds[2].push_back(slack_units(width) * want[2][p * k.s.R + r]);
      }
    }
    for (std::int64_t r = 0; r < k.s.R; ++r) {
      double squares = 0;
      for (std::int64_t i = 0; i < k.s.C; ++i) squares += std::pow(in[0][k.s.place(r, i)], 2);
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(k.s.C) + 1e-5F);
      EXPECT_NEAR(want[1][r], rstd, 1e-12 * rstd) << "of the whole norm";
    }
    return bounds;
  };
  return c;
}

OpCase divided_backward_case(DType compute, const RmsCase& k, std::int64_t parts, Random& random) {
  OpCase c = backward_case(compute, k, InPlace::kNone, random);
  c.name += fmt::format(" parts={}", parts);
  c.outputs.push_back({.dtype = DType::kF32, .shape = shape(parts, k.s.R)});
  c.run = [k, parts](const KernelTable& table, const KernelContext& context, const Views& in,
                     const Views& out, GradientMode mode) {
    const auto part_op = [&](std::int64_t p) {
      const PartColumns part = part_columns(k.s.C, parts, p);
      const auto columns = [&](const TensorView& matrix) {
        return columns_of(matrix, k.s.before + part.begin, part.width);
      };
      return RmsNormBackward{.dy = columns(in[0]),
                             .x = columns(in[1]),
                             .weight = elements_of(in[2], part.begin, part.width),
                             .rstd = in[3],
                             .dresidual = k.with_residual ? columns(in[4]) : StridedRows{},
                             .dx = columns(out[0]),
                             .dweight = elements_of(out[1], part.begin, part.width),
                             .form = k.form,
                             .mode = mode,
                             .along = out[2],
                             .total_width = k.s.C};
    };
    for (std::int64_t p = 0; p < parts; ++p) {
      const RmsNormBackward op = part_op(p);
      table.norm_along(context, {op.dy, op.x, op.weight, op.rstd,
                                 elements_of(out[2], p * k.s.R, k.s.R), op.form});
    }
    for (std::int64_t p = 0; p < parts; ++p) table.rms_norm_backward(context, part_op(p));
  };
  c.bounds = [k, parts](const Values& in, const Values& want) {
    Values bounds = backward_bounds(k, in, {want[0], want[1]});
    bounds.emplace_back();
    for (std::int64_t p = 0; p < parts; ++p) {
      const PartColumns part = part_columns(k.s.C, parts, p);
      for (std::int64_t r = 0; r < k.s.R; ++r) {
        double size = 0;
        for (std::int64_t i = part.begin; i < part.begin + part.width; ++i) {
          const std::int64_t at = k.s.place(r, i);
          size += std::abs(in[0][at] * (in[2][i] + k.weight_offset()) * in[1][at] * in[3][r]);
        }
        bounds[2].push_back(slack_units(part.width) * size);
      }
    }
    return bounds;
  };
  return c;
}

constexpr RmsShape kDividedRows[] = {{5, 48}, {37, 100}, {3, 1536}, {9, 96, 1, 8, 16}};

void add_divided(std::vector<OpCase>& cases, DType compute, Random& random) {
  for (const RmsShape& s : kDividedRows) {
    for (std::int64_t parts = 1; parts <= 3; ++parts) {
      const RmsNormForm form = kForms[parts - 1];
      RmsCase k{
          .s = s, .form = form, .with_residual = parts == 2, .rounding = rounding_to(compute)};
      cases.push_back(divided_forward_case(compute, k, parts, random));
      cases.push_back(divided_backward_case(compute, k, parts, random));
    }
  }
}

void add_all(std::vector<OpCase>& cases, DType compute, const RmsShape& s, RmsNormForm form,
             Random& random) {
  RmsCase k{.s = s, .form = form, .with_residual = false, .rounding = rounding_to(compute)};
  cases.push_back(forward_case(compute, k, random));
  cases.push_back(backward_case(compute, k, InPlace::kNone, random));
  cases.push_back(backward_case(compute, k, InPlace::kGradient, random));
  k.with_residual = true;
  cases.push_back(backward_case(compute, k, InPlace::kNone, random));
  cases.push_back(backward_case(compute, k, InPlace::kResidual, random));
}

}  // namespace

std::vector<OpCase> rms_norm_cases(DType compute) {
  Random random(2);
  std::vector<OpCase> cases;
  for (const RmsShape& s : kWholeRows) add_all(cases, compute, s, kRoundThenMultiply, random);
  for (const RmsNormForm form : kForms) {
    for (const RmsShape& s : kGroups) add_all(cases, compute, s, form, random);
    cases.push_back(exact_forward_case(compute, form, random));
    cases.push_back(exact_backward_case(compute, form, random));
    if (form == kRoundThenMultiply) continue;
    for (const RmsShape& s : kFormRows) add_all(cases, compute, s, form, random);
  }
  add_divided(cases, compute, random);
  return cases;
}

}  // namespace terrace::test
