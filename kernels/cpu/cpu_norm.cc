#include "kernels/cpu/cpu_norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/grouped_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// C width, r row, u unit: a group of a row (kernels/grouped_rows.h). Products and sums are separate
// operations, so that processors with and without a fused multiply-add give the same bits.

// Calls body(std::integral_constant<RmsNormForm, form>).
template <typename Body>
HWY_INLINE void with_form(RmsNormForm form, const Body& body) {
  using enum RmsNormForm;
  if (form == kRoundThenMultiply) {
    body(std::integral_constant<RmsNormForm, kRoundThenMultiply>{});
  } else if (form == kMultiplyThenRound) {
    body(std::integral_constant<RmsNormForm, kMultiplyThenRound>{});
  } else {
    body(std::integral_constant<RmsNormForm, kMultiplyByOnePlus>{});
  }
}

// Returns the weight, or 1 + the weight.
template <RmsNormForm Form, typename T>
HWY_INLINE Vec factor_n(const T* weight, std::int64_t n) {
  const Vec value = load_n(weight, n);
  if constexpr (Form != RmsNormForm::kMultiplyByOnePlus) return value;
  return hn::Add(splat(1.0F), value);
}

// Returns the normed value that is multiplied by the weight: rounded to the type of T, or not.
template <RmsNormForm Form, typename T>
HWY_INLINE Vec met_value(Vec normal, const T* type) {
  if constexpr (Form != RmsNormForm::kRoundThenMultiply) return normal;
  return round_to(normal, type);
}

template <typename T>
HWY_INLINE float squares_of(const T* x, std::int64_t C) {
  return sum_over(C, [x](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec value = load_n(x + i, n);
    return hn::Mul(value, value);
  });
}

template <RmsNormForm Form, typename T>
HWY_INLINE float along_of(const T* dy, const T* x, const T* weight, float rstd, std::int64_t C) {
  return sum_over(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec g = hn::Mul(load_n(dy + i, n), factor_n<Form>(weight + i, n));
    return hn::Mul(g, hn::Mul(load_n(x + i, n), splat(rstd)));
  });
}

// Returns the sum of the numbers that the parts of a divided width give row r, added in order.
HWY_INLINE float sum_of_parts(const TensorView& sums, std::int64_t rows, std::int64_t r) {
  const float* const parts = sums.as<const float>();
  float sum = parts[r];
  for (std::int64_t p = 1; p < sums.elements() / rows; ++p) sum += parts[p * rows + r];
  return sum;
}

template <RmsNormForm Form, typename T>
void rms_forward_units(const RmsNormForward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.weight.elements();
  const bool divided = !op.squares.empty();
  const auto width = static_cast<float>(divided ? op.total_width : C);
  const T* weight = op.weight.as<const T>();
  const GroupedRows<const T> xs(op.x, C);
  const GroupedRows<T> ys(op.y, C);
  for (std::int64_t u = begin; u < end; ++u) {
    const T* x = xs.at(u);
    T* y = ys.at(u);
    const float squares = divided ? sum_of_parts(op.squares, op.x.rows, u) : squares_of(x, C);
    const float rstd = 1.0F / std::sqrt(squares / width + op.epsilon);
    op.rstd.as<float>()[u] = rstd;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec normal = met_value<Form>(hn::Mul(load_n(x + i, n), splat(rstd)), y);
      store_n(hn::Mul(factor_n<Form>(weight + i, n), normal), y + i, n);
    });
  }
}

void rms_forward(const RmsNormForward& op, std::int64_t begin, std::int64_t end) {
  with_form(op.form, [&]<RmsNormForm Form>(std::integral_constant<RmsNormForm, Form>) {
    if (op.x.dtype == DType::kF32) return rms_forward_units<Form, float>(op, begin, end);
    rms_forward_units<Form, Bf16>(op, begin, end);
  });
}

// dx = dresidual + rstd (g - xhat mean(g xhat)), g = dy weight, xhat = x rstd.
template <RmsNormForm Form, typename T>
void rms_backward_units(const RmsNormBackward& op, std::int64_t begin, std::int64_t end,
                        float* dweight) {
  const std::int64_t C = op.weight.elements();
  const bool divided = !op.along.empty();
  const auto width = static_cast<float>(divided ? op.total_width : C);
  const T* weight = op.weight.as<const T>();
  const GroupedRows<const T> dys(op.dy, C);
  const GroupedRows<const T> xs(op.x, C);
  const GroupedRows<const T> dresiduals(op.dresidual, C);
  const GroupedRows<T> dxs(op.dx, C);
  std::fill_n(dweight, C, 0.0F);
  for (std::int64_t u = begin; u < end; ++u) {
    const T* x = xs.at(u);
    const T* dy = dys.at(u);
    const T* dresidual = dresiduals.at_or_null(u);
    T* dx = dxs.at(u);
    const float rstd = op.rstd.as<const float>()[u];
    const float projection =
        divided ? sum_of_parts(op.along, op.x.rows, u) : along_of<Form>(dy, x, weight, rstd, C);
    const float mean = projection / width;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec dy_i = load_n(dy + i, n);
      const Vec normal = hn::Mul(load_n(x + i, n), splat(rstd));
      const Vec g = hn::Mul(dy_i, factor_n<Form>(weight + i, n));
      Vec sum = hn::Mul(splat(rstd), hn::Sub(g, hn::Mul(normal, splat(mean))));
      if (dresidual != nullptr) sum = hn::Add(load_n(dresidual + i, n), sum);
      store_n(sum, dx + i, n);
      const Vec term = hn::Mul(dy_i, met_value<Form>(normal, dx));
      store_n(hn::Add(load_n(dweight + i, n), term), dweight + i, n);
    });
  }
}

void rms_backward(const RmsNormBackward& op, std::int64_t begin, std::int64_t end, float* dweight) {
  with_form(op.form, [&]<RmsNormForm Form>(std::integral_constant<RmsNormForm, Form>) {
    if (op.x.dtype == DType::kF32) return rms_backward_units<Form, float>(op, begin, end, dweight);
    rms_backward_units<Form, Bf16>(op, begin, end, dweight);
  });
}

template <typename T>
void row_squares_as(const RowSquares& op, std::int64_t begin, std::int64_t end) {
  const GroupedRows<const T> xs(op.x, op.x.width);
  for (std::int64_t r = begin; r < end; ++r) {
    op.sums.as<float>()[r] = squares_of(xs.at(r), op.x.width);
  }
}

void row_squares(const RowSquares& op, std::int64_t begin, std::int64_t end) {
  if (op.x.dtype == DType::kF32) return row_squares_as<float>(op, begin, end);
  row_squares_as<Bf16>(op, begin, end);
}

template <RmsNormForm Form, typename T>
void norm_along_as(const NormAlong& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.x.width;
  const T* weight = op.weight.as<const T>();
  const GroupedRows<const T> dys(op.dy, C);
  const GroupedRows<const T> xs(op.x, C);
  const float* rstd = op.rstd.as<const float>();
  for (std::int64_t r = begin; r < end; ++r) {
    op.sums.as<float>()[r] = along_of<Form>(dys.at(r), xs.at(r), weight, rstd[r], C);
  }
}

void norm_along(const NormAlong& op, std::int64_t begin, std::int64_t end) {
  with_form(op.form, [&]<RmsNormForm Form>(std::integral_constant<RmsNormForm, Form>) {
    if (op.x.dtype == DType::kF32) return norm_along_as<Form, float>(op, begin, end);
    norm_along_as<Form, Bf16>(op, begin, end);
  });
}

template <bool Biased, typename T>
void layer_forward_rows(const LayerNormForward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t C = op.weight.elements();
  const T* weight = op.weight.as<const T>();
  const T* bias = Biased ? op.bias.as<const T>() : nullptr;
  for (std::int64_t r = begin; r < end; ++r) {
    const T* x = op.x.as<const T>() + r * C;
    T* y = op.y.as<T>() + r * C;
    const float sum = sum_over(
        C, [x](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY { return load_n(x + i, n); });
    const float mean = sum / static_cast<float>(C);
    const float squares =
        sum_over(C, [x, mean](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
          const Vec centred = hn::Sub(load_n(x + i, n, mean), splat(mean));
          return hn::Mul(centred, centred);
        });
    const float rstd = 1.0F / std::sqrt(squares / static_cast<float>(C) + op.epsilon);
    op.mean.as<float>()[r] = mean;
    op.rstd.as<float>()[r] = rstd;
    for_each_vector(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
      const Vec normal = hn::Mul(hn::Sub(load_n(x + i, n), splat(mean)), splat(rstd));
      Vec out = hn::Mul(load_n(weight + i, n), normal);
      if constexpr (Biased) out = hn::Add(out, load_n(bias + i, n));
      store_n(out, y + i, n);
    });
  }
}

void layer_forward(const LayerNormForward& op, std::int64_t begin, std::int64_t end) {
  const bool biased = !op.bias.empty();
  if (op.x.dtype == DType::kF32) {
    return biased ? layer_forward_rows<true, float>(op, begin, end)
                  : layer_forward_rows<false, float>(op, begin, end);
  }
  if (biased) return layer_forward_rows<true, Bf16>(op, begin, end);
  layer_forward_rows<false, Bf16>(op, begin, end);
}

// One row of a LayerNorm's backward. Its weight gradients are added to dweight and dbias.
// dx = dresidual + rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight, xhat = (x - mean) rstd.
template <typename T>
struct LayerNormRow {
  const T *dy, *x, *weight, *dresidual;
  T* dx;
  float *dweight, *dbias;
  float mean, rstd;
  std::int64_t width;
};

template <typename T>
HWY_INLINE void layer_backward_row(const LayerNormRow<T>& row) {
  const std::int64_t C = row.width;
  const float mean = row.mean;
  const float rstd = row.rstd;
  const T *x = row.x, *dy = row.dy, *weight = row.weight;
  const float sum = sum_over(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    return hn::Mul(load_n(dy + i, n), load_n(weight + i, n));
  });
  const float projection = sum_over(C, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec g = hn::Mul(load_n(dy + i, n), load_n(weight + i, n));
    return hn::Mul(g, hn::Mul(hn::Sub(load_n(x + i, n), splat(mean)), splat(rstd)));
  });
  const Vec g_mean = splat(sum / static_cast<float>(C));
  const Vec gx_mean = splat(projection / static_cast<float>(C));
  for_each_vector(C, [=, &row](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    const Vec dy_i = load_n(dy + i, n);
    const Vec normal = hn::Mul(hn::Sub(load_n(x + i, n), splat(mean)), splat(rstd));
    const Vec g = hn::Mul(dy_i, load_n(weight + i, n));
    Vec dx = hn::Mul(splat(rstd), hn::Sub(hn::Sub(g, g_mean), hn::Mul(normal, gx_mean)));
    if (row.dresidual != nullptr) dx = hn::Add(load_n(row.dresidual + i, n), dx);
    store_n(dx, row.dx + i, n);
    store_n(hn::Add(load_n(row.dweight + i, n), hn::Mul(dy_i, normal)), row.dweight + i, n);
    store_n(hn::Add(load_n(row.dbias + i, n), dy_i), row.dbias + i, n);
  });
}

template <typename T>
void layer_backward_rows(const LayerNormBackward& op, std::int64_t begin, std::int64_t end,
                         float* partials) {
  const std::int64_t C = op.weight.elements();
  std::fill_n(partials, 2 * C, 0.0F);
  for (std::int64_t r = begin; r < end; ++r) {
    LayerNormRow<T> row = {};
    row.dy = op.dy.as<const T>() + r * C;
    row.x = op.x.as<const T>() + r * C;
    row.weight = op.weight.as<const T>();
    row.dresidual = op.dresidual.empty() ? nullptr : op.dresidual.as<const T>() + r * C;
    row.dx = op.dx.as<T>() + r * C;
    row.dweight = partials;
    row.dbias = partials + C;
    row.mean = op.mean.as<const float>()[r];
    row.rstd = op.rstd.as<const float>()[r];
    row.width = C;
    layer_backward_row(row);
  }
}

void layer_backward(const LayerNormBackward& op, std::int64_t begin, std::int64_t end,
                    float* partials) {
  if (op.x.dtype == DType::kF32) return layer_backward_rows<float>(op, begin, end, partials);
  layer_backward_rows<Bf16>(op, begin, end, partials);
}

// target[0, width) = (or +=) 0 + the rows of partials in fp32, in order.
void add_partials(const StridedRows& partials, bool accumulate, float* target) {
  const float* const first = reinterpret_cast<const float*>(partials.data);
  const std::int64_t rows = partials.rows, stride = partials.stride;
  for_each_vector(partials.width, [=](std::int64_t i, std::int64_t n) TERRACE_VECTOR_BODY {
    Vec sum = hn::Zero(Lanes());
    for (std::int64_t r = 0; r < rows; ++r) sum = hn::Add(sum, load_n(first + r * stride + i, n));
    if (accumulate) sum = hn::Add(load_n(target + i, n), sum);
    store_n(sum, target + i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(rms_forward);
HWY_EXPORT(rms_backward);
HWY_EXPORT(row_squares);
HWY_EXPORT(norm_along);
HWY_EXPORT(layer_forward);
HWY_EXPORT(layer_backward);
HWY_EXPORT(add_partials);

namespace {

constexpr std::int64_t kForwardRowBlock = 16;
constexpr std::int64_t kColumnBlock = 256;

void check_compute_type(DType dtype) {
  TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
}

// Returns the number of units of x, after checking that its rows are whole groups of weight's
// width, and that it has weight's dtype, which is a compute type.
std::int64_t checked_units(const StridedRows& x, const TensorView& weight) {
  check_compute_type(x.dtype);
  TERRACE_CHECK(weight.dtype == x.dtype);
  return terrace::checked_units(x, weight.elements());
}

// Returns the number of rows of x, after checking that x has whole rows of weight's width and
// weight's dtype, which is a compute type.
std::int64_t checked_rows(const TensorView& x, const TensorView& weight) {
  check_compute_type(x.dtype);
  TERRACE_CHECK(weight.dtype == x.dtype);
  TERRACE_CHECK_LT(0, weight.elements());
  TERRACE_CHECK_EQ(x.elements() % weight.elements(), 0);
  return x.elements() / weight.elements();
}

struct Partials {
  float* data;
  std::int64_t blocks, stride, columns;

  StridedRows of_columns(std::int64_t begin, std::int64_t end) const {
    return {reinterpret_cast<std::byte*>(data + begin), DType::kF32, blocks, end - begin, stride};
  }
};

void reduce_partials(const KernelContext& context, const Partials& partials, GradientMode mode,
                     float* target) {
  const bool accumulate = mode == GradientMode::kAccumulate;
  for_each_block(context, partials.columns, kColumnBlock,
                 [&](std::int64_t begin, std::int64_t end) {
                   HWY_DYNAMIC_DISPATCH(add_partials)
                   (partials.of_columns(begin, end), accumulate, target + begin);
                 });
}

}  // namespace

void cpu_rms_norm_forward(const KernelContext& context, const RmsNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t units = checked_units(op.x, op.weight);
  check_same_rows(op.y, op.x);
  checked_parts(op.squares, op.x, C, op.total_width);
  TERRACE_CHECK_EQ(op.rstd.elements(), units);
  for_each_block(context, units, kForwardRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rms_forward)(op, begin, end);
  });
}

void cpu_rms_norm_backward(const KernelContext& context, const RmsNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t units = checked_units(op.x, op.weight);
  check_same_rows(op.dy, op.x);
  check_same_rows(op.dx, op.x);
  checked_parts(op.along, op.x, C, op.total_width);
  TERRACE_CHECK_EQ(op.rstd.elements(), units);
  TERRACE_CHECK_EQ(op.dweight.elements(), C);
  TERRACE_CHECK_LE(cpu_norm_backward_workspace(units, C, 1), context.workspace.size());
  float* partials = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t blocks = blocks_of(units, kNormRowBlock);
  for_each_block(context, units, kNormRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rms_backward)
    (op, begin, end, partials + begin / kNormRowBlock * C);
  });
  reduce_partials(context, {partials, blocks, C, C}, op.mode, op.dweight.as<float>());
}

void cpu_row_squares(const KernelContext& context, const RowSquares& op) {
  check_compute_type(op.x.dtype);
  TERRACE_CHECK_EQ(op.sums.elements(), op.x.rows);
  for_each_block(context, op.x.rows, kForwardRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(row_squares)(op, begin, end);
  });
}

void cpu_norm_along(const KernelContext& context, const NormAlong& op) {
  TERRACE_CHECK_EQ(checked_units(op.x, op.weight), op.x.rows);
  check_same_rows(op.dy, op.x);
  TERRACE_CHECK_EQ(op.rstd.elements(), op.x.rows);
  TERRACE_CHECK_EQ(op.sums.elements(), op.x.rows);
  for_each_block(context, op.x.rows, kForwardRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_along)(op, begin, end);
  });
}

void cpu_layer_norm_forward(const KernelContext& context, const LayerNormForward& op) {
  const std::int64_t rows = checked_rows(op.x, op.weight);
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  if (!op.bias.empty()) TERRACE_CHECK_EQ(op.bias.elements(), op.weight.elements());
  TERRACE_CHECK_EQ(op.mean.elements(), rows);
  TERRACE_CHECK_EQ(op.rstd.elements(), rows);
  for_each_block(context, rows, kForwardRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(layer_forward)(op, begin, end);
  });
}

void cpu_layer_norm_backward(const KernelContext& context, const LayerNormBackward& op) {
  const std::int64_t rows = checked_rows(op.x, op.weight);
  const std::int64_t C = op.weight.elements();
  TERRACE_CHECK_EQ(op.dweight.elements(), C);
  TERRACE_CHECK_LE(cpu_norm_backward_workspace(rows, C, 1), context.workspace.size());
  float* partials = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t blocks = blocks_of(rows, kNormRowBlock);
  for_each_block(context, rows, kNormRowBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(layer_backward)
    (op, begin, end, partials + begin / kNormRowBlock * 2 * C);
  });
  reduce_partials(context, {partials, blocks, 2 * C, C}, op.mode, op.dweight.as<float>());
  if (op.dbias.empty()) return;
  TERRACE_CHECK_EQ(op.dbias.elements(), C);
  reduce_partials(context, {partials + C, blocks, 2 * C, C}, op.mode, op.dbias.as<float>());
}

std::size_t cpu_norm_backward_workspace(std::int64_t rows, std::int64_t width, int /*workers*/) {
  const std::int64_t blocks = blocks_of(rows, kNormRowBlock);
  return static_cast<std::size_t>(blocks * 2 * width) * sizeof(float);
}

}  // namespace terrace
#endif  // HWY_ONCE
