#include <cmath>

#include "kernels/grouped_rows.h"
#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Letters: U units (the groups of all rows), C their width, w the weight, or 1 + w if the form says
// so.

template <typename T>
Wide<T> weight_at(const TensorView& weight, std::int64_t c, RmsNormForm form) {
  const Wide<T> value = load(weight.as<T>()[c]);
  return form == RmsNormForm::kMultiplyByOnePlus ? 1 + value : value;
}

// Returns the sum of the parts of row r in sums [parts, rows], added in order.
template <typename W>
W sum_of_parts(const TensorView& sums, std::int64_t rows, std::int64_t r) {
  W sum = sums.as<W>()[r];
  for (std::int64_t p = 1; p < sums.elements() / rows; ++p) sum += sums.as<W>()[p * rows + r];
  return sum;
}

template <typename T>
Wide<T> squares_of(const T* x, std::int64_t C) {
  Wide<T> squares = 0;
  for (std::int64_t c = 0; c < C; ++c) squares += load(x[c]) * load(x[c]);
  return squares;
}

template <typename T>
void rms_forward(const RmsNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t U = checked_units(op.x, C);
  check_same_rows(op.y, op.x);
  TERRACE_CHECK_EQ(op.rstd.elements(), U);
  const bool divided = checked_parts(op.squares, op.x, C, op.total_width) > 0;
  const GroupedRows<const T> xs(op.x, C);
  const GroupedRows<T> ys(op.y, C);
  for (std::int64_t u = 0; u < U; ++u) {
    const T* x = xs.at(u);
    const Wide<T> squares = divided ? sum_of_parts<Wide<T>>(op.squares, U, u) : squares_of(x, C);
    const Wide<T> mean = squares / static_cast<Wide<T>>(divided ? op.total_width : C);
    const Wide<T> rstd = 1 / std::sqrt(mean + static_cast<Wide<T>>(op.epsilon));
    op.rstd.as<Wide<T>>()[u] = rstd;
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> weight = weight_at<T>(op.weight, c, op.form);
      const Wide<T> normed = load(x[c]) * rstd;
      const bool rounds = op.form == RmsNormForm::kRoundThenMultiply;
      ys.at(u)[c] = round_to<T>(weight * (rounds ? load(round_to<T>(normed)) : normed));
    }
  }
}

// Returns how much of the gradient points along x; this part changes the norm only.
template <typename T>
Wide<T> along_of(const RmsNormBackward& op, std::int64_t u) {
  const std::int64_t C = op.weight.elements();
  const T* dy = GroupedRows<const T>(op.dy, C).at(u);
  const T* x = GroupedRows<const T>(op.x, C).at(u);
  const Wide<T> rstd = op.rstd.as<Wide<T>>()[u];
  Wide<T> along = 0;
  for (std::int64_t c = 0; c < C; ++c) {
    along += load(dy[c]) * weight_at<T>(op.weight, c, op.form) * (load(x[c]) * rstd);
  }
  return along;
}

template <typename T>
void rms_backward_input(const RmsNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t U = op.rstd.elements();
  const bool divided = checked_parts(op.along, op.x, C, op.total_width) > 0;
  for (std::int64_t u = 0; u < U; ++u) {
    const T* dy = GroupedRows<const T>(op.dy, C).at(u);
    const T* x = GroupedRows<const T>(op.x, C).at(u);
    const T* dresidual = GroupedRows<const T>(op.dresidual, C).at_or_null(u);
    T* dx = GroupedRows<T>(op.dx, C).at(u);
    const Wide<T> rstd = op.rstd.as<Wide<T>>()[u];
    Wide<T> along = divided ? sum_of_parts<Wide<T>>(op.along, U, u) : along_of<T>(op, u);
    along /= static_cast<Wide<T>>(divided ? op.total_width : C);
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> normed = load(x[c]) * rstd;
      const Wide<T> weight = weight_at<T>(op.weight, c, op.form);
      const Wide<T> gradient = rstd * (load(dy[c]) * weight - normed * along);
      dx[c] = round_to<T>(dresidual == nullptr ? gradient : load(dresidual[c]) + gradient);
    }
  }
}

template <typename T>
void rms_backward(const RmsNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t U = checked_units(op.x, C);
  check_same_rows(op.dy, op.x);
  check_same_rows(op.dx, op.x);
  TERRACE_CHECK_EQ(op.rstd.elements(), U);
  const GroupedRows<const T> dys(op.dy, C);
  const GroupedRows<const T> xs(op.x, C);
  const Wide<T>* rstd = op.rstd.as<Wide<T>>();
  for (std::int64_t c = 0; c < C; ++c) {
    Wide<T> sum = 0;
    for (std::int64_t u = 0; u < U; ++u) {
      const Wide<T> normed = load(xs.at(u)[c]) * rstd[u];
      // Uses the rounded value if the forward multiplied the weight by it.
      const bool rounds = op.form == RmsNormForm::kRoundThenMultiply;
      sum += load(dys.at(u)[c]) * (rounds ? load(round_to<T>(normed)) : normed);
    }
    join_gradient(op.dweight.as<Wide<T>>()[c], sum, op.mode);
  }
  rms_backward_input<T>(op);  // last: dx may be dy
}

template <typename T>
void layer_forward(const LayerNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  const T* weight = op.weight.as<T>();
  const T* bias = op.bias.empty() ? nullptr : op.bias.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    const T* x = op.x.as<T>() + r * C;
    T* y = op.y.as<T>() + r * C;
    Wide<T> sum = 0;
    for (std::int64_t c = 0; c < C; ++c) sum += load(x[c]);
    const Wide<T> mean = sum / static_cast<Wide<T>>(C);
    Wide<T> squares = 0;
    for (std::int64_t c = 0; c < C; ++c) squares += (load(x[c]) - mean) * (load(x[c]) - mean);
    const Wide<T> variance = squares / static_cast<Wide<T>>(C);
    const Wide<T> rstd = 1 / std::sqrt(variance + static_cast<Wide<T>>(op.epsilon));
    op.mean.as<Wide<T>>()[r] = mean;
    op.rstd.as<Wide<T>>()[r] = rstd;
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> product = load(weight[c]) * ((load(x[c]) - mean) * rstd);
      y[c] = round_to<T>(bias == nullptr ? product : product + load(bias[c]));
    }
  }
}

template <typename T>
void layer_backward_input(const LayerNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  const T* weight = op.weight.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    const T* dy = op.dy.as<T>() + r * C;
    const T* x = op.x.as<T>() + r * C;
    const T* dresidual = op.dresidual.empty() ? nullptr : op.dresidual.as<T>() + r * C;
    T* dx = op.dx.as<T>() + r * C;
    const Wide<T> mean = op.mean.as<Wide<T>>()[r];
    const Wide<T> rstd = op.rstd.as<Wide<T>>()[r];
    Wide<T> common = 0;
    Wide<T> along = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> gradient = load(dy[c]) * load(weight[c]);
      common += gradient;
      along += gradient * ((load(x[c]) - mean) * rstd);
    }
    common /= static_cast<Wide<T>>(C);
    along /= static_cast<Wide<T>>(C);
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> normed = (load(x[c]) - mean) * rstd;
      const Wide<T> gradient = rstd * (load(dy[c]) * load(weight[c]) - common - normed * along);
      dx[c] = round_to<T>(dresidual == nullptr ? gradient : load(dresidual[c]) + gradient);
    }
  }
}

template <typename T>
void layer_backward(const LayerNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.dy.elements(), R * C);
  TERRACE_CHECK_EQ(op.dx.elements(), R * C);
  layer_backward_input<T>(op);
  const T* dy = op.dy.as<T>();
  const T* x = op.x.as<T>();
  const Wide<T>* mean = op.mean.as<Wide<T>>();
  const Wide<T>* rstd = op.rstd.as<Wide<T>>();
  for (std::int64_t c = 0; c < C; ++c) {
    Wide<T> weight_sum = 0;
    Wide<T> bias_sum = 0;
    for (std::int64_t r = 0; r < R; ++r) {
      weight_sum += load(dy[r * C + c]) * ((load(x[r * C + c]) - mean[r]) * rstd[r]);
      bias_sum += load(dy[r * C + c]);
    }
    join_gradient(op.dweight.as<Wide<T>>()[c], weight_sum, op.mode);
    if (!op.dbias.empty()) join_gradient(op.dbias.as<Wide<T>>()[c], bias_sum, op.mode);
  }
}

}  // namespace

void rms_norm_forward(const KernelContext&, const RmsNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { rms_forward<T>(op); });
}

void rms_norm_backward(const KernelContext&, const RmsNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { rms_backward<T>(op); });
}

void row_squares(const KernelContext&, const RowSquares& op) {
  TERRACE_CHECK_EQ(op.sums.elements(), op.x.rows);
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    const GroupedRows<const T> x(op.x, op.x.width);
    for (std::int64_t r = 0; r < op.x.rows; ++r) {
      op.sums.as<Wide<T>>()[r] = squares_of(x.at(r), op.x.width);
    }
  });
}

void norm_along(const KernelContext&, const NormAlong& op) {
  check_same_rows(op.dy, op.x);
  TERRACE_CHECK_EQ(op.weight.elements(), op.x.width);
  TERRACE_CHECK_EQ(op.rstd.elements(), op.x.rows);
  TERRACE_CHECK_EQ(op.sums.elements(), op.x.rows);
  RmsNormBackward backward;
  backward.dy = op.dy;
  backward.x = op.x;
  backward.weight = op.weight;
  backward.rstd = op.rstd;
  backward.form = op.form;
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) {
    for (std::int64_t r = 0; r < op.x.rows; ++r) {
      op.sums.as<Wide<T>>()[r] = along_of<T>(backward, r);
    }
  });
}

void layer_norm_forward(const KernelContext&, const LayerNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { layer_forward<T>(op); });
}

void layer_norm_backward(const KernelContext&, const LayerNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { layer_backward<T>(op); });
}

}  // namespace terrace::reference
