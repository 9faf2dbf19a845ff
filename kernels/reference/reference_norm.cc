#include <cmath>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

template <typename T>
void rms_forward(const RmsNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  const T* weight = op.weight.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    const T* x = op.x.as<T>() + r * C;
    T* y = op.y.as<T>() + r * C;
    Wide<T> squares = 0;
    for (std::int64_t c = 0; c < C; ++c) squares += load(x[c]) * load(x[c]);
    const Wide<T> mean = squares / static_cast<Wide<T>>(C);
    const Wide<T> rstd = 1 / std::sqrt(mean + static_cast<Wide<T>>(op.epsilon));
    op.rstd.as<Wide<T>>()[r] = rstd;
    for (std::int64_t c = 0; c < C; ++c) {
      const T normed = round_to<T>(load(x[c]) * rstd);
      y[c] = round_to<T>(load(weight[c]) * load(normed));
    }
  }
}

template <typename T>
void rms_backward_input(const RmsNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  const T* weight = op.weight.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    const T* dy = op.dy.as<T>() + r * C;
    const T* x = op.x.as<T>() + r * C;
    const T* dresidual = op.dresidual.empty() ? nullptr : op.dresidual.as<T>() + r * C;
    T* dx = op.dx.as<T>() + r * C;
    const Wide<T> rstd = op.rstd.as<Wide<T>>()[r];
    Wide<T> along = 0;  // how much of the gradient points along x: it changes the norm only
    for (std::int64_t c = 0; c < C; ++c) {
      along += load(dy[c]) * load(weight[c]) * (load(x[c]) * rstd);
    }
    along /= static_cast<Wide<T>>(C);
    for (std::int64_t c = 0; c < C; ++c) {
      const Wide<T> normed = load(x[c]) * rstd;
      const Wide<T> gradient = rstd * (load(dy[c]) * load(weight[c]) - normed * along);
      dx[c] = round_to<T>(dresidual == nullptr ? gradient : load(dresidual[c]) + gradient);
    }
  }
}

template <typename T>
void rms_backward(const RmsNormBackward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.dy.elements(), R * C);
  TERRACE_CHECK_EQ(op.dx.elements(), R * C);
  rms_backward_input<T>(op);
  const T* dy = op.dy.as<T>();
  const T* x = op.x.as<T>();
  const Wide<T>* rstd = op.rstd.as<Wide<T>>();
  for (std::int64_t c = 0; c < C; ++c) {
    Wide<T> sum = 0;
    for (std::int64_t r = 0; r < R; ++r) {
      // The rounded value is what the forward multiplied the weight with.
      sum += load(dy[r * C + c]) * load(round_to<T>(load(x[r * C + c]) * rstd[r]));
    }
    join_gradient(op.dweight.as<Wide<T>>()[c], sum, op.mode);
  }
}

template <typename T>
void layer_forward(const LayerNormForward& op) {
  const std::int64_t C = op.weight.elements();
  const std::int64_t R = op.rstd.elements();
  TERRACE_CHECK_EQ(op.x.elements(), R * C);
  TERRACE_CHECK_EQ(op.y.elements(), R * C);
  const T* weight = op.weight.as<T>();
  const T* bias = op.bias.as<T>();
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
      y[c] = round_to<T>(load(weight[c]) * ((load(x[c]) - mean) * rstd) + load(bias[c]));
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
    join_gradient(op.dbias.as<Wide<T>>()[c], bias_sum, op.mode);
  }
}

}  // namespace

void rms_norm_forward(const KernelContext&, const RmsNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { rms_forward<T>(op); });
}

void rms_norm_backward(const KernelContext&, const RmsNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { rms_backward<T>(op); });
}

void layer_norm_forward(const KernelContext&, const LayerNormForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { layer_forward<T>(op); });
}

void layer_norm_backward(const KernelContext&, const LayerNormBackward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { layer_backward<T>(op); });
}

}  // namespace terrace::reference
