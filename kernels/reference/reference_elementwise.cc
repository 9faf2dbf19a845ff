#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/philox.h"
#include "kernels/norm_tree.h"
#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {

void add(const KernelContext&, const Add& op) {
  TERRACE_CHECK_EQ(op.a.elements(), op.y.elements());
  TERRACE_CHECK_EQ(op.b.elements(), op.y.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < op.y.elements(); ++i) {
      const Wide<T> b = static_cast<Wide<T>>(op.b_scale) * load(op.b.as<T>()[i]);
      op.y.as<T>()[i] = round_to<T>(load(op.a.as<T>()[i]) + b);
    }
  });
}

void scale(const KernelContext&, const Scale& op) {
  TERRACE_CHECK_EQ(op.x.elements(), op.y.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < op.y.elements(); ++i) {
      op.y.as<T>()[i] = round_to<T>(static_cast<Wide<T>>(op.factor) * load(op.x.as<T>()[i]));
    }
  });
}

void scale_rows(const KernelContext&, const ScaleRows& op) {
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t row = 0; row < op.y.rows; ++row) {
      const T* x = reinterpret_cast<const T*>(op.x.data) + row * op.x.stride;
      T* y = reinterpret_cast<T*>(op.y.data) + row * op.y.stride;
      for (std::int64_t i = 0; i < op.y.width; ++i) {
        const Wide<T> scaled = static_cast<Wide<T>>(op.factor) * load(x[i]);
        y[i] = round_to<T>(op.adds ? load(y[i]) + scaled : scaled);
      }
    }
  });
}

void dropout(const KernelContext&, const Dropout& op) {
  const std::int64_t columns = op.x.shape[1];
  TERRACE_CHECK_EQ(op.samples.elements() * columns, op.x.elements());
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < op.x.elements(); ++i) {
      const std::int64_t row = i / columns;
      const T x = op.x.as<T>()[i];
      const std::int32_t sample = op.samples.as<std::int32_t>()[row];
      const auto column = static_cast<std::uint64_t>(op.first_column + i % columns);
      const auto position = static_cast<std::uint64_t>(row % op.positions);
      const auto words = philox({op.seed}, {(position << 32U) + column / 4, op.stream,
                                            static_cast<std::uint32_t>(sample)});
      const T kept = round_to<T>(static_cast<Wide<T>>(op.factor) * load(x));
      const T dropped = round_to<T>(Wide<T>{0});
      op.y.as<T>()[i] = sample < 0 ? x : words[column % 4] >= op.threshold ? kept : dropped;
    }
  });
}

void magnitude_factors(const KernelContext&, const MagnitudeFactors& op) {
  const std::int64_t columns = op.magnitude.elements();
  TERRACE_CHECK_EQ(op.squares.elements(), columns);
  TERRACE_CHECK_EQ(op.inverses.elements(), columns);
  TERRACE_CHECK_EQ(op.factors.elements(), columns);
  with_compute_type(op.magnitude.dtype, [&]<typename T>(std::type_identity<T>) {
    using W = Wide<T>;
    for (std::int64_t i = 0; i < columns; ++i) {
      const W norm = load(round_to<T>(std::sqrt(op.squares.as<W>()[i])));
      op.inverses.as<W>()[i] = norm > 0 ? W{1} / norm : W{0};
      op.factors.as<W>()[i] = norm > 0 ? load(op.magnitude.as<T>()[i]) / norm : W{0};
    }
  });
}

void scale_columns(const KernelContext&, const ScaleColumns& op) {
  TERRACE_CHECK_EQ(op.x.rows, op.y.rows);
  TERRACE_CHECK_EQ(op.x.width, op.y.width);
  TERRACE_CHECK_EQ(op.factors.elements(), op.x.width);
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    using W = Wide<T>;
    for (std::int64_t row = 0; row < op.y.rows; ++row) {
      const T* x = reinterpret_cast<const T*>(op.x.data) + row * op.x.stride;
      const T* times = reinterpret_cast<const T*>(op.times.data) + row * op.times.stride;
      T* y = reinterpret_cast<T*>(op.y.data) + row * op.y.stride;
      for (std::int64_t i = 0; i < op.y.width; ++i) {
        const W bias = op.bias.empty() ? W{0} : load(op.bias.as<T>()[i]);
        const W factor = op.factors.as<W>()[i];
        const W rest = load(x[i]) - bias;
        const W scaled = op.times.empty() ? factor * rest + bias : factor * (rest * load(times[i]));
        y[i] = round_to<T>(scaled);
      }
    }
  });
}

void accumulate_gradient(const KernelContext&, const AccumulateGradient& op) {
  TERRACE_CHECK_EQ(op.source.elements(), op.target.elements());
  const float* source = op.source.as<float>();
  float* target = op.target.as<float>();
  for (std::int64_t i = 0; i < op.target.elements(); ++i) target[i] += source[i];
}

void round_gradient(const KernelContext&, const RoundGradient& op) {
  TERRACE_CHECK_EQ(op.source.elements(), op.target.elements());
  for (std::int64_t i = 0; i < op.target.elements(); ++i) {
    op.target.as<Bf16>()[i] = to_bf16_nearest_even(op.source.as<float>()[i]);
  }
}

void fill_zero(const KernelContext&, const FillZero& op) {
  std::memset(op.target.data, 0, op.target.size_bytes());
}

void cast_parameters(const KernelContext&, const CastParameters& op) {
  TERRACE_CHECK_EQ(op.source.elements(), op.target.elements());
  if (op.source.dtype == op.target.dtype) {
    std::memcpy(op.target.data, op.source.data, op.source.size_bytes());
    return;
  }
  const bool narrows = op.source.dtype == DType::kF32;
  const auto cast = [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < op.target.elements(); ++i) {
      if (narrows) {
        op.target.as<T>()[i] = to_parameter<T>(op.source.as<float>()[i]);
      } else {
        op.target.as<float>()[i] = to_float(op.source.as<T>()[i]);
      }
    }
  };
  const DType narrow = (narrows ? op.target : op.source).dtype;
  if (narrow == DType::kF16) return cast(std::type_identity<Fp16>{});
  TERRACE_CHECK(narrow == DType::kBF16);
  cast(std::type_identity<Bf16>{});
}

void dequantize(const KernelContext&, const Dequantize& op) {
  TERRACE_CHECK_EQ(op.target.elements(), op.shape.elements);
  TERRACE_CHECK_EQ(op.bytes.elements(), op.shape.size_bytes());
  const QuantizedBytes bytes(op.bytes.data, op.shape);
  with_compute_type(op.target.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < op.shape.elements; ++i) {
      const std::int64_t block = i / kQuantizedBlock;
      const float level =
          block_level(bytes, op.shape, block, static_cast<int>(i % kQuantizedBlock));
      op.target.as<T>()[i] = round_to<T>(level * block_factor(bytes, op.shape, block));
    }
  });
}

namespace {

float gradient_at(const TensorView& gradient, std::int64_t i) {
  if (gradient.dtype == DType::kF32) return gradient.as<float>()[i];
  if (gradient.dtype == DType::kF16) return to_float(gradient.as<Fp16>()[i]);
  return to_float(gradient.as<Bf16>()[i]);
}

}  // namespace

void norm_partials(const KernelContext&, const NormPartials& op) {
  const std::int64_t elements = op.gradient.elements();
  TERRACE_CHECK_EQ(op.partials.elements(), (elements + kNormBlock - 1) / kNormBlock);
  std::vector<float> block;
  for (std::int64_t i = 0; i < op.partials.elements(); ++i) {
    const std::int64_t first = i * kNormBlock;
    block.clear();
    for (std::int64_t j = first; j < std::min(first + kNormBlock, elements); ++j) {
      block.push_back(gradient_at(op.gradient, j));
    }
    op.partials.as<double>()[i] = block_sum_of_squares(block);
  }
}

}  // namespace terrace::reference
