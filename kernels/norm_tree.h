#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// The two fixed fp64 summation trees of the project. Every kernel table adds in this order,
// whatever its vector width and number of workers, so that norms and losses have the same bits
// everywhere.
namespace terrace {

// Lanes of the sum of squares: element i of a block is added to lane i mod 8, in order of i.
inline constexpr std::int64_t kNormLanes = 8;

// Does the last step of the sum of squares: neighbours are added, three times.
inline double reduce_norm_lanes(const std::array<double, kNormLanes>& lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Returns the sum of squares of at most one norm block. Each lane starts at +0; the square of an
// fp32 is exact in fp64, so a fused multiply-add gives the same bits as a product and an addition.
inline double block_sum_of_squares(std::span<const float> block) {
  std::array<double, kNormLanes> lanes = {};
  for (std::size_t i = 0; i < block.size(); ++i) {
    const double value = block[i];
    lanes[i % static_cast<std::size_t>(kNormLanes)] += value * value;
  }
  return reduce_norm_lanes(lanes);
}

// Returns the sum of n values by halving: the first floor(n/2) are summed, then the others, both in
// the same way, and the two sums are added. The sum of no values is 0. The tree depends on n alone.
inline double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0.0;
  if (values.size() == 1) return values[0];
  const std::size_t half = values.size() / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

}  // namespace terrace
