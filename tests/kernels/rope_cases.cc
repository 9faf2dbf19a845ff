#include <fmt/format.h>

#include <cmath>

#include "tests/kernels/op_case.h"

namespace terrace::test {
namespace {

struct RopeShape {
  std::int64_t R, T;          // rows, in all and of a sequence
  std::int64_t heads, D;      // heads in a row of the matrix, and their width
  std::int64_t first, count;  // heads that are given to the op
  std::int64_t rotary;        // of a head
  std::int64_t first_position = 0;
  bool has_positions = false;
  double factor = 1;

  std::int64_t table_rows() const { return first_position + T + (has_positions ? 5 : 0); }
};

constexpr RopeShape kRopeShapes[] = {{1, 1, 1, 32, 0, 1, 32},
                                     {34, 17, 6, 32, 0, 4, 32},
                                     {34, 17, 6, 64, 4, 1, 64},
                                     {130, 130, 3, 20, 1, 2, 20},
                                     {34, 17, 4, 64, 1, 2, 16},
                                     {26, 13, 3, 80, 0, 2, 20, 4},
                                     {12, 1, 2, 256, 0, 2, 64, 9, false, 1.19},
                                     {34, 17, 4, 96, 1, 3, 96, 0, true, 1.19},
                                     {33, 11, 2, 16, 0, 1, 8, 0, true}};

// Returns the rows' positions. Several rows may share a position, and some positions have no row.
HostTensor positions_of(const RopeShape& s) {
  HostTensor positions(DType::kI32, shape(s.R));
  for (std::int64_t r = 0; r < s.R; ++r) {
    positions.set(r, static_cast<double>((r * 7 + r / 3) % s.table_rows()));
  }
  return positions;
}

std::int64_t position_of(const RopeShape& s, const Values& in, std::int64_t r) {
  return s.has_positions ? static_cast<std::int64_t>(in[2][r]) : s.first_position + r % s.T;
}

Values rope_bounds(const RopeShape& s, const Rounding& rounding, const Values& in,
                   const Values& want) {
  Values bounds = {std::vector<double>(want[0].size(), 0.0)};
  const std::int64_t half = s.rotary / 2;
  for (std::int64_t r = 0; r < s.R; ++r) {
    for (std::int64_t h = s.first; h < s.first + s.count; ++h) {
      const std::int64_t at = (r * s.heads + h) * s.D;
      for (std::int64_t d = 0; d < s.rotary; ++d) {
        const double* angles = &in[1][position_of(s, in, r) * s.rotary + d % half];
        const double other = in[0][at + (d + half) % s.rotary];
        const double sum = 2.01 * kUnitF32 *
                           (std::abs(in[0][at + d] * angles[0]) + std::abs(other * angles[half]));
        bounds[0][at + d] = sum + rounding.of(std::abs(want[0][at + d]) + sum);
      }
    }
  }
  return bounds;  // 0 for elements that are not rotated: they keep their bits
}

OpCase rope_case(DType compute, const RopeShape& s, bool inverse, Random& random) {
  OpCase c;
  c.name = fmt::format(
      "rope R={} T={} D={} first={} count={} rotary={} from={} positions={} inverse={}", s.R, s.T,
      s.D, s.first, s.count, s.rotary, s.first_position, s.has_positions, inverse);
  c.inputs.push_back(HostTensor::random(compute, shape(s.R, s.heads * s.D), random));
  c.inputs.emplace_back(DType::kF32, shape(s.table_rows(), s.rotary));
  const std::int64_t half = s.rotary / 2;
  for (std::int64_t i = 0; i < s.table_rows() * half; ++i) {
    const double angle = 3 * random.uniform();
    const std::int64_t at = i / half * s.rotary + i % half;
    c.inputs[1].set(at, s.factor * std::cos(angle));
    c.inputs[1].set(at + half, s.factor * std::sin(angle));
  }
  if (s.has_positions) c.inputs.push_back(positions_of(s));
  c.outputs = {{.dtype = compute,
                .shape = c.inputs[0].view().shape,
                .kind = OutputKind::kInPlace,
                .same_as = 0}};
  set_op(c, &KernelTable::rope, [s, inverse](const Views& in, const Views& out, GradientMode) {
    Rope op{.heads = columns_of(out[0], s.first * s.D, s.count * s.D),
            .table = in[1],
            .head_width = s.D,
            .rotary_width = s.rotary,
            .inverse = inverse};
    if (s.has_positions) {
      op.positions = in[2];
    } else {
      op.sequence = s.T;
      op.first_position = s.first_position;
    }
    return op;
  });
  c.bounds = [s, rounding = rounding_to(compute)](const Values& in, const Values& want) {
    return rope_bounds(s, rounding, in, want);
  };
  return c;
}

}  // namespace

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
