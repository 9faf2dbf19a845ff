#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// The rotary embedding, in place. A row of the map is one head of one row of qkv.
namespace terrace::shared {

template <typename T>
struct RopeBody {
  T* qkv;
  const float* table;
  std::int64_t row_width, D, first_head;
  Divisor sequence, heads;
  bool inverse;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    constexpr int kPack = kPackOf<T>;
    const std::int64_t half = D / 2;
    const std::int64_t r = heads.quotient(row);
    T* const head = qkv + r * row_width + (first_head + heads.remainder(row)) * D + first;
    const float* const angles = table + sequence.remainder(r) * D + first;
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
  const std::int64_t R = op.qkv.shape[0];
  const std::int64_t D = op.head_width;
  const std::int64_t row_width = op.qkv.elements() / R;
  TERRACE_CHECK_LE((op.first_head + op.heads) * D, row_width);
  TERRACE_CHECK_LE(op.sequence * D, op.table.elements());
  with_compute_type(op.qkv.dtype, [&]<typename T>(std::type_identity<T>) {
    // Half a head is whole packs; then every row and head begins on one too.
    const bool aligned = may_load_packs({op.qkv.data, op.table.data}, D / 2 * sizeof(T)) &&
                         row_width * sizeof(T) % 16 == 0;
    const RopeBody<T> body{op.qkv.as<T>(),
                           op.table.as<float>(),
                           row_width,
                           D,
                           op.first_head,
                           Divisor(op.sequence, R),
                           Divisor(op.heads, R * op.heads),
                           op.inverse,
                           aligned};
    launch_map<kPackOf<T>>(launcher, "rope", R * op.heads, D / 2, body);
  });
}

}  // namespace terrace::shared
