#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/norm_tree.h"
#include "kernels/shared/map.h"

// Additions, casts and sums of squares. All give the same bits as the reference.
namespace terrace::shared {

template <typename T>
struct AddBody {
  const T* a;
  const T* b;
  T* y;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto x = load_words(a + first, count, aligned);
    const auto z = load_words(b + first, count, aligned);
    store_words(y + first, sum_of_words<T>(x, z), count, aligned);
  }
};

template <typename T>
TERRACE_KERNEL Floats<kPackOf<T>> scaled_words(float factor, const Words<T>& words) {
  Floats<kPackOf<T>> scaled;
  TERRACE_UNROLL
  for (int i = 0; i < kPackOf<T>; ++i) scaled.at[i] = factor * words.value(i);
  return scaled;
}

template <typename T>
struct AddScaledBody {
  const T* a;
  const T* b;
  T* y;
  float b_scale;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto x = load_words(a + first, count, aligned);
    const auto scaled = scaled_words<T>(b_scale, load_words(b + first, count, aligned));
    Floats<kPackOf<T>> sum;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) sum.at[i] = x.value(i) + scaled.at[i];
    store_words(y + first, round_words<T>(sum), count, aligned);
  }
};

template <typename T>
struct ScaleBody {
  const T* x;
  T* y;
  float factor;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto words = load_words(x + first, count, aligned);
    store_words(y + first, round_words<T>(scaled_words<T>(factor, words)), count, aligned);
  }
};

template <typename Launcher>
void scale(Launcher& launcher, const Scale& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.y.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.x.data, op.y.data}, 0);
    const ScaleBody<T> body{op.x.as<T>(), op.y.as<T>(), op.factor, aligned};
    launch_map<kPackOf<T>>(launcher, "scale", 1, op.y.elements(), body);
  });
}

template <typename T>
struct ScaleRowsBody {
  const T* x;
  T* y;
  std::int64_t x_stride, y_stride;
  float factor;
  bool adds, aligned;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    const auto words = load_words(x + row * x_stride + first, count, aligned);
    Floats<kPackOf<T>> result = scaled_words<T>(factor, words);
    T* const target = y + row * y_stride + first;
    if (adds) {
      const auto before = load_words(static_cast<const T*>(target), count, aligned);
      TERRACE_UNROLL
      for (int i = 0; i < kPackOf<T>; ++i) result.at[i] = before.value(i) + result.at[i];
    }
    store_words(target, round_words<T>(result), count, aligned);
  }
};

template <typename Launcher>
void scale_rows(Launcher& launcher, const ScaleRows& op) {
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const auto bytes = [](std::int64_t stride) {
      return static_cast<std::size_t>(stride) * sizeof(T);
    };
    const bool aligned = may_load_packs({op.x.data, op.y.data}, bytes(op.x.stride)) &&
                         may_load_packs({}, bytes(op.y.stride));
    const ScaleRowsBody<T> body{reinterpret_cast<const T*>(op.x.data),
                                reinterpret_cast<T*>(op.y.data),
                                op.x.stride,
                                op.y.stride,
                                op.factor,
                                op.adds,
                                aligned};
    launch_map<kPackOf<T>>(launcher, "scale_rows", op.y.rows, op.y.width, body);
  });
}

template <typename Launcher>
void add(Launcher& launcher, const Add& op) {
  TERRACE_CHECK_EQ(op.a.elements(), op.y.elements());
  TERRACE_CHECK_EQ(op.b.elements(), op.y.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.a.data, op.b.data, op.y.data}, 0);
    if (op.b_scale != 1.0F) {
      const AddScaledBody<T> body{op.a.as<T>(), op.b.as<T>(), op.y.as<T>(), op.b_scale, aligned};
      return launch_map<kPackOf<T>>(launcher, "add", 1, op.y.elements(), body);
    }
    const AddBody<T> body{op.a.as<T>(), op.b.as<T>(), op.y.as<T>(), aligned};
    launch_map<kPackOf<T>>(launcher, "add", 1, op.y.elements(), body);
  });
}

template <typename Launcher>
void accumulate_gradient(Launcher& launcher, const AccumulateGradient& op) {
  TERRACE_CHECK_EQ(op.source.elements(), op.target.elements());
  const bool aligned = may_load_packs({op.source.data, op.target.data}, 0);
  const AddBody<float> body{op.target.as<float>(), op.source.as<float>(), op.target.as<float>(),
                            aligned};
  launch_map<kPackOf<float>>(launcher, "accumulate_gradient", 1, op.target.elements(), body);
}

template <typename Launcher>
void fill_zero(Launcher& launcher, const FillZero& op) {
  launcher.zero(op.target.data, op.target.size_bytes());
}

// Elements that a cast takes at a time: eight, so that the narrower side moves 16 bytes.
inline constexpr int kCastPack = 8;

// The numbers that are narrowed: parameters round as base/half.h does for their type, gradients
// round to nearest even.
enum class Narrowed : std::uint8_t { kParameter, kGradient };

template <typename T, Narrowed What>
struct NarrowBody {
  const float* source;
  T* target;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t count) const {
    const auto wide = load_pack<float, kCastPack>(source + first, count, aligned);
    Pack<T, kCastPack> narrow;
    TERRACE_UNROLL
    for (int i = 0; i < kCastPack; ++i) {
      if constexpr (What == Narrowed::kParameter) {
        narrow.at[i] = to_parameter<T>(wide.at[i]);
      } else {
        narrow.at[i] = to_bf16_nearest_even(wide.at[i]);
      }
    }
    store_pack(target + first, narrow, count, aligned);
  }
};

template <typename T>
struct WidenBody {
  const T* source;
  float* target;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t count) const {
    const auto narrow = load_pack<T, kCastPack>(source + first, count, aligned);
    Pack<float, kCastPack> wide;
    TERRACE_UNROLL
    for (int i = 0; i < kCastPack; ++i) wide.at[i] = to_float(narrow.at[i]);
    store_pack(target + first, wide, count, aligned);
  }
};

template <typename Launcher>
void cast_parameters(Launcher& launcher, const CastParameters& op) {
  const std::int64_t n = op.target.elements();
  TERRACE_CHECK_EQ(op.source.elements(), n);
  const bool aligned = may_load_packs({op.source.data, op.target.data}, 0);
  if (op.source.dtype == op.target.dtype) {
    launcher.copy(op.target.data, op.source.data, op.source.size_bytes());
    return;
  }
  const bool narrows = op.source.dtype == DType::kF32;
  TERRACE_CHECK(narrows || op.target.dtype == DType::kF32);
  with_compute_type((narrows ? op.target : op.source).dtype,
                    [&]<typename T>(std::type_identity<T>) {
                      if (narrows) {
                        const NarrowBody<T, Narrowed::kParameter> body{op.source.as<float>(),
                                                                       op.target.as<T>(), aligned};
                        launch_map<kCastPack>(launcher, "cast_parameters", 1, n, body);
                      } else {
                        const WidenBody<T> body{op.source.as<T>(), op.target.as<float>(), aligned};
                        launch_map<kCastPack>(launcher, "cast_parameters", 1, n, body);
                      }
                    });
}

template <typename Launcher>
void round_gradient(Launcher& launcher, const RoundGradient& op) {
  const std::int64_t n = op.target.elements();
  TERRACE_CHECK_EQ(op.source.elements(), n);
  const bool aligned = may_load_packs({op.source.data, op.target.data}, 0);
  const NarrowBody<Bf16, Narrowed::kGradient> body{op.source.as<float>(), op.target.as<Bf16>(),
                                                   aligned};
  launch_map<kCastPack>(launcher, "round_gradient", 1, n, body);
}

// A pack lies in one half of a block.
template <typename T>
struct DequantizeBody {
  QuantizedBytes bytes;
  QuantizedShape shape;
  T* target;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const std::int64_t block = first / kQuantizedBlock;
    const float factor = block_factor(bytes, shape, block);
    Pack<T> pack;
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) {
      const int at = static_cast<int>(first % kQuantizedBlock) + i;
      pack.at[i] = round_to<T>(block_level(bytes, shape, block, at) * factor);
    }
    store_pack(target + first, pack, count, aligned);
  }
};

template <typename Launcher>
void dequantize(Launcher& launcher, const Dequantize& op) {
  TERRACE_CHECK_EQ(op.target.elements(), op.shape.elements);
  TERRACE_CHECK_EQ(op.bytes.elements(), op.shape.size_bytes());
  with_compute_type(op.target.dtype, [&]<typename T>(std::type_identity<T>) {
    const DequantizeBody<T> body{QuantizedBytes(op.bytes.data, op.shape), op.shape,
                                 op.target.as<T>(), may_load_packs({op.target.data}, 0)};
    launch_map<kPackOf<T>>(launcher, "dequantize", 1, op.shape.elements, body);
  });
}

// Eight neighbouring threads are the lanes of a norm block (kernels/norm_tree.h), so that a warp
// reads whole sectors and every lane adds in the written order.
template <typename T>
struct NormPartialsKernel {
  const T* gradient;
  double* partials;
  std::int64_t elements;

  static constexpr int kThreads = 256;
  static constexpr int kLanes = static_cast<int>(kNormLanes);
  static constexpr int kBlocks = kThreads / kLanes;  // norm blocks of one block of threads
  static constexpr int kAtOnce = 16;                 // loads that wait together

  TERRACE_KERNEL static void load(T (&values)[kAtOnce], const T* first) {
    TERRACE_UNROLL
    for (int j = 0; j < kAtOnce; ++j) values[j] = first[j * kLanes];
  }
  TERRACE_KERNEL static void add(double& sum, const T (&values)[kAtOnce]) {
    TERRACE_UNROLL
    for (int j = 0; j < kAtOnce; ++j) sum = plus_square(sum, values[j]);
  }
  TERRACE_KERNEL static double plus_square(double sum, T loaded) {
    const double value = to_float(loaded);
    return ::fma(value, value, sum);
  }

  // Returns the sum of own[0], own[kLanes], ...; the next ones are loaded while some are added.
  TERRACE_KERNEL static double lane_sum(const T* own, int count) {
    const int whole = count / kAtOnce * kAtOnce;
    double sum = 0;
    if (whole != 0) {
      T values[kAtOnce];
      load(values, own);
      for (int i = kAtOnce; i < whole; i += kAtOnce) {
        T next[kAtOnce];
        load(next, own + i * kLanes);
        add(sum, values);
        TERRACE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) values[j] = next[j];
      }
      add(sum, values);
    }
    for (int i = whole; i < count; ++i) sum = plus_square(sum, own[i * kLanes]);
    return sum;
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const sums = reinterpret_cast<double*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      const std::int64_t first = (block.index() * kBlocks + t / kLanes) * kNormBlock + t % kLanes;
      const std::int64_t rest =
          std::clamp(elements - first, std::int64_t{0}, std::int64_t{kNormBlock});
      const auto count = static_cast<int>((rest + kLanes - 1) / kLanes);
      sums[t] = count == 0 ? 0.0 : lane_sum(gradient + first, count);
    });
    block.sync();
    block.for_each_thread([&](int t) {
      const std::int64_t at = block.index() * kBlocks + t;
      if (t >= kBlocks || at * kNormBlock >= elements) return;
      const double* const lanes = sums + t * kLanes;
      partials[at] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                     ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    });
  }
};

template <typename Launcher>
void norm_partials(Launcher& launcher, const NormPartials& op) {
  const std::int64_t elements = op.gradient.elements();
  TERRACE_CHECK_EQ(op.partials.elements(), divide_up(elements, kNormBlock));
  if (elements == 0) return;
  with_compute_type(op.gradient.dtype, [&]<typename T>(std::type_identity<T>) {
    using Kernel = NormPartialsKernel<T>;
    const Kernel kernel{op.gradient.as<T>(), op.partials.as<double>(), elements};
    launcher.template launch<Kernel::kThreads>("norm_partials", kernel,
                                               divide_up(op.partials.elements(), Kernel::kBlocks),
                                               Kernel::kThreads * sizeof(double));
  });
}

}  // namespace terrace::shared
