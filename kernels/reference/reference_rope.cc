#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Rotates the pairs (head[i], head[i + D/2]) of one head.
template <typename T>
void rotate(T* head, const Wide<T>* angles, std::int64_t D, bool inverse) {
  const std::int64_t half = D / 2;
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
  const std::int64_t R = op.qkv.shape[0];
  const std::int64_t width = op.qkv.elements() / R;
  TERRACE_CHECK_LE((op.first_head + op.heads) * D, width);
  TERRACE_CHECK_LE(op.sequence * D, op.table.elements());
  for (std::int64_t r = 0; r < R; ++r) {
    const Wide<T>* angles = op.table.as<Wide<T>>() + (r % op.sequence) * D;
    for (std::int64_t h = op.first_head; h < op.first_head + op.heads; ++h) {
      rotate<T>(op.qkv.as<T>() + r * width + h * D, angles, D, op.inverse);
    }
  }
}

}  // namespace

void rope(const KernelContext&, const Rope& op) {
  with_compute_type(op.qkv.dtype, [&]<typename T>(std::type_identity<T>) { rotate_rows<T>(op); });
}

}  // namespace terrace::reference
