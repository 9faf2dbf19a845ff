#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// The rotary embedding, in place. A row of the map is one head of one row.
namespace terrace::shared {

template <typename T>
struct RopeBody {
  T* rows;
  const float* table;
  const std::int32_t* positions;  // null: counted in the sequence
  std::int64_t stride, head_width, rotary_width, first_position;
  Divisor sequence, heads;
  bool inverse;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    constexpr int kPack = kPackOf<T>;
    const std::int64_t half = rotary_width / 2;
    const std::int64_t r = heads.quotient(row);
    const std::int64_t position =
        positions != nullptr ? positions[r] : first_position + sequence.remainder(r);
    T* const head = rows + r * stride + heads.remainder(row) * head_width + first;
    const float* const angles = table + position * rotary_width + first;
    const auto x = load_words(head, count, aligned);
    const auto y = load_words(head + half, count, aligned);
    const auto cosines = load_pack<float, kPack>(angles, count, aligned);
    const auto sines = load_pack<float, kPack>(angles + half, count, aligned);
    Floats<kPack> turned_x;
    Floats<kPack> turned_y;
    TERRACE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float sine = inverse ? -sines.at[i] : sines.at[i];
      const float a = x.value(i);
      const float b = y.value(i);
      turned_x.at[i] = a * cosines.at[i] - b * sine;
      turned_y.at[i] = b * cosines.at[i] + a * sine;
    }
    store_words(head, round_words<T>(turned_x), count, aligned);
    store_words(head + half, round_words<T>(turned_y), count, aligned);
  }
};

template <typename Launcher>
void rope(Launcher& launcher, const Rope& op) {
  const std::int64_t R = op.heads.rows;
  const std::int64_t heads = op.heads.width / op.head_width;
  TERRACE_CHECK_EQ(heads * op.head_width, op.heads.width);
  TERRACE_CHECK_EQ(op.rotary_width % 2, 0);
  TERRACE_CHECK_LE(op.rotary_width, op.head_width);
  if (op.positions.empty()) {
    const std::int64_t positions = op.first_position + std::min(op.sequence, R);
    TERRACE_CHECK_LE(positions * op.rotary_width, op.table.elements());
  } else {
    TERRACE_CHECK_EQ(op.positions.elements(), R);
  }
  with_compute_type(op.heads.dtype, [&]<typename T>(std::type_identity<T>) {
    // The rotated elements split into halves of whole packs, and every row and head begins on a
    // pack.
    const bool aligned =
        may_load_packs({op.heads.data, op.table.data}, op.rotary_width / 2 * sizeof(T)) &&
        op.head_width * sizeof(T) % 16 == 0 && op.heads.stride * sizeof(T) % 16 == 0;
    const RopeBody<T> body{
        .rows = reinterpret_cast<T*>(op.heads.data),
        .table = op.table.as<float>(),
        .positions = op.positions.empty() ? nullptr : op.positions.as<std::int32_t>(),
        .stride = op.heads.stride,
        .head_width = op.head_width,
        .rotary_width = op.rotary_width,
        .first_position = op.first_position,
        .sequence = Divisor(op.positions.empty() ? op.sequence : 1, R),
        .heads = Divisor(heads, R * heads),
        .inverse = op.inverse,
        .aligned = aligned};
    launch_map<kPackOf<T>>(launcher, "rope", R * heads, op.rotary_width / 2, body);
  });
}

}  // namespace terrace::shared
