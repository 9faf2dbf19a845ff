#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Rotates the pairs (head[i], head[i + width/2]) of one head.
template <typename T>
void rotate(T* head, const Wide<T>* angles, std::int64_t width, bool inverse) {
  const std::int64_t half = width / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const Wide<T> cosine = angles[i];
    const Wide<T> sine = inverse ? -angles[half + i] : angles[half + i];
    const Wide<T> first = load(head[i]);
    const Wide<T> second = load(head[half + i]);
    head[i] = round_to<T>(first * cosine - second * sine);
    head[half + i] = round_to<T>(second * cosine + first * sine);
  }
}

template <typename T>
void rotate_rows(const Rope& op) {
  const std::int64_t D = op.head_width;
  TERRACE_CHECK_EQ(op.heads.width % D, 0);
  TERRACE_CHECK_LE(op.rotary_width, D);
  for (std::int64_t r = 0; r < op.heads.rows; ++r) {
    const std::int64_t position = op.positions.empty() ? op.first_position + r % op.sequence
                                                       : op.positions.as<std::int32_t>()[r];
    TERRACE_CHECK_LE(0, position);
    TERRACE_CHECK_LE((position + 1) * op.rotary_width, op.table.elements());
    const Wide<T>* angles = op.table.as<Wide<T>>() + position * op.rotary_width;
    T* row = reinterpret_cast<T*>(op.heads.data) + r * op.heads.stride;
    for (std::int64_t at = 0; at < op.heads.width; at += D) {
      rotate<T>(row + at, angles, op.rotary_width, op.inverse);
    }
  }
}

}  // namespace

void rope(const KernelContext&, const Rope& op) {
  with_compute_type(op.heads.dtype, [&]<typename T>(std::type_identity<T>) { rotate_rows<T>(op); });
}

}  // namespace terrace::reference
