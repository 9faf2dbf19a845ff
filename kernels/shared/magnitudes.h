#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// Ops on columns that each have their own magnitude. All give the same bits as the reference.
namespace terrace::shared {

template <typename T>
struct MagnitudeFactorsBody {
  const float* squares;
  const T* magnitude;
  float* inverses;
  float* factors;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    for (int i = 0; i < count; ++i) {
      const std::int64_t at = first + i;
      const float norm = widened(round_to<T>(::sqrtf(squares[at])));
      inverses[at] = norm > 0.0F ? 1.0F / norm : 0.0F;
      factors[at] = norm > 0.0F ? widened(magnitude[at]) / norm : 0.0F;
    }
  }
};

template <typename Launcher>
void magnitude_factors(Launcher& launcher, const MagnitudeFactors& op) {
  const std::int64_t columns = op.magnitude.elements();
  TERRACE_CHECK_EQ(op.squares.elements(), columns);
  TERRACE_CHECK_EQ(op.inverses.elements(), columns);
  TERRACE_CHECK_EQ(op.factors.elements(), columns);
  with_compute_type(op.magnitude.dtype, [&]<typename T>(std::type_identity<T>) {
    const MagnitudeFactorsBody<T> body{op.squares.as<float>(), op.magnitude.as<T>(),
                                       op.inverses.as<float>(), op.factors.as<float>()};
    launch_map<4>(launcher, "magnitude_factors", 1, columns, body);
  });
}

template <typename T>
struct ScaleColumnsBody {
  const T* x;
  const T* times;  // may be null
  const float* factors;
  const T* bias;  // may be null
  T* y;
  std::int64_t x_stride, times_stride, y_stride;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    constexpr int kCount = kPackOf<T>;
    const auto loaded = load_pack<T, kCount>(x + row * x_stride + first, count, aligned);
    Pack<T, kCount> result;
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) {
        result.at[i] = T{};
        continue;
      }
      const std::int64_t at = first + i;
      const float add = bias == nullptr ? 0.0F : widened(bias[at]);
      const float rest = widened(loaded.at[i]) - add;
      const float scaled = times == nullptr
                               ? factors[at] * rest + add
                               : factors[at] * (rest * widened(times[row * times_stride + at]));
      result.at[i] = round_to<T>(scaled);
    }
    store_pack(y + row * y_stride + first, result, count, aligned);
  }
};

template <typename Launcher>
void scale_columns(Launcher& launcher, const ScaleColumns& op) {
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  TERRACE_CHECK_EQ(op.factors.elements(), op.x.width);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const auto bytes = [](std::int64_t stride) {
      return static_cast<std::size_t>(stride) * sizeof(T);
    };
    const ScaleColumnsBody<T> body{reinterpret_cast<const T*>(op.x.data),
                                   reinterpret_cast<const T*>(op.times.data),
                                   op.factors.as<float>(),
                                   op.bias.empty() ? nullptr : op.bias.as<T>(),
                                   reinterpret_cast<T*>(op.y.data),
                                   op.x.stride,
                                   op.times.stride,
                                   op.y.stride,
                                   may_load_packs({op.x.data, op.y.data}, bytes(op.x.stride)) &&
                                       may_load_packs({}, bytes(op.y.stride))};
    launch_map<kPackOf<T>>(launcher, "scale_columns", op.y.rows, op.y.width, body);
  });
}

}  // namespace terrace::shared
