#pragma once

#include <array>
#include <cstdint>

#include "base/philox.h"
#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// Dropout. It gives the same bits as the reference.
namespace terrace::shared {

template <typename T>
struct DropoutBody {
  // A pack touches at most this number of groups of four columns. Each has one Philox block.
  static constexpr int kGroups = kPackOf<T> / 4 + 1;
  struct Random {
    std::uint32_t at[4 * kGroups];
  };

  const T* x;
  T* y;
  const std::int32_t* samples;
  std::int64_t columns, first_column;
  Divisor positions;  // of a sample
  std::uint64_t seed;
  std::uint32_t stream, threshold;
  float factor;
  bool aligned;

  // Returns the random words of a pack whose first column is `first`: word i is for its element i.
  // All indices are constants, so the words stay in registers.
  TERRACE_KERNEL Random random_of(std::int64_t row, std::int64_t first, std::int32_t sample) const {
    const auto column = static_cast<std::uint64_t>(first_column + first);
    const auto place = static_cast<int>(column % 4);  // of the pack's first element, in its group
    const auto position = static_cast<std::uint64_t>(positions.remainder(row));
    const std::uint64_t group = (position << 32U) + column / 4;
    Random random = {};
    TERRACE_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      if (i == kGroups - 1 && place == 0) continue;  // the pack ends before this group
      const std::array<std::uint32_t, 4> words = philox(
          {seed},
          {group + static_cast<std::uint64_t>(i), stream, static_cast<std::uint32_t>(sample)});
      TERRACE_UNROLL
      for (int j = 0; j < 4; ++j) random.at[4 * i + j] = words[j];
    }
    TERRACE_UNROLL
    for (int i = 0; i < 4 * kGroups - 1; ++i) {
      if ((place & 1) != 0) random.at[i] = random.at[i + 1];
    }
    TERRACE_UNROLL
    for (int i = 0; i < 4 * kGroups - 2; ++i) {
      if ((place & 2) != 0) random.at[i] = random.at[i + 2];
    }
    return random;
  }

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    const std::int64_t begin = row * columns + first;
    const Words<T> pack = load_words(x + begin, count, aligned);
    const std::int32_t sample = samples[row];
    if (sample < 0) return store_words(y + begin, pack, count, aligned);
    const Random random = random_of(row, first, sample);
    Floats<kPackOf<T>> result;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      result.at[i] = random.at[i] >= threshold ? factor * pack.value(i) : 0.0F;
    }
    store_words(y + begin, round_words<T>(result), count, aligned);
  }
};

template <typename Launcher>
void dropout(Launcher& launcher, const Dropout& op) {
  const std::int64_t rows = op.samples.elements();
  const std::int64_t columns = op.x.shape[1];
  TERRACE_CHECK_EQ(rows * columns, op.x.elements());
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned =
        may_load_packs({op.x.data, op.y.data}, static_cast<std::size_t>(columns) * sizeof(T));
    const DropoutBody<T> body{.x = op.x.as<T>(),
                              .y = op.y.as<T>(),
                              .samples = op.samples.as<std::int32_t>(),
                              .columns = columns,
                              .first_column = op.first_column,
                              .positions = Divisor(op.positions, rows),
                              .seed = op.seed,
                              .stream = op.stream,
                              .threshold = op.threshold,
                              .factor = op.factor,
                              .aligned = aligned};
    launch_map<kPackOf<T>>(launcher, "dropout", rows, columns, body);
  });
}

}  // namespace terrace::shared
