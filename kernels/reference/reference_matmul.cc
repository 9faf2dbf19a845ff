#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

template <typename T>
void forward(const MatmulForward& op) {
  const std::int64_t N = op.weight.shape[0];
  const std::int64_t K = op.weight.shape[1];
  const std::int64_t R = op.x.elements() / K;
  TERRACE_CHECK_EQ(op.x.elements(), R * K);
  TERRACE_CHECK_EQ(op.y.elements(), R * N);
  const T* x = op.x.as<T>();
  const T* weight = op.weight.as<T>();
  const T* bias = op.bias.empty() ? nullptr : op.bias.as<T>();
  T* y = op.y.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t n = 0; n < N; ++n) {
      Wide<T> sum = 0;
      for (std::int64_t k = 0; k < K; ++k) sum += load(x[r * K + k]) * load(weight[n * K + k]);
      if (bias != nullptr) sum += load(bias[n]);
      y[r * N + n] = round_to<T>(sum);
    }
  }
}

template <typename T>
void backward_input(const MatmulBackwardInput& op) {
  const std::int64_t N = op.weight.shape[0];
  const std::int64_t K = op.weight.shape[1];
  const std::int64_t R = op.dy.elements() / N;
  TERRACE_CHECK_EQ(op.dy.elements(), R * N);
  TERRACE_CHECK_EQ(op.dx.elements(), R * K);
  const T* dy = op.dy.as<T>();
  const T* weight = op.weight.as<T>();
  T* dx = op.dx.as<T>();
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t k = 0; k < K; ++k) {
      Wide<T> sum = 0;
      for (std::int64_t n = 0; n < N; ++n) sum += load(dy[r * N + n]) * load(weight[n * K + k]);
      dx[r * K + k] = round_to<T>(sum);
    }
  }
}

template <typename T>
void backward_weight(const MatmulBackwardWeight& op) {
  const std::int64_t N = op.dweight.shape[0];
  const std::int64_t K = op.dweight.shape[1];
  const std::int64_t R = op.dy.elements() / N;
  TERRACE_CHECK_EQ(op.dy.elements(), R * N);
  TERRACE_CHECK_EQ(op.x.elements(), R * K);
  const std::int64_t stride = op.dy_stride == 0 ? N : op.dy_stride;
  const T* dy = op.dy.as<T>();
  const T* x = op.x.as<T>();
  Wide<T>* dweight = op.dweight.as<Wide<T>>();
  for (std::int64_t n = 0; n < N && dweight != nullptr; ++n) {
    for (std::int64_t k = 0; k < K; ++k) {
      Wide<T> sum = 0;
      for (std::int64_t r = 0; r < R; ++r) sum += load(dy[r * stride + n]) * load(x[r * K + k]);
      join_gradient(dweight[n * K + k], sum, op.mode);
    }
  }
  if (op.dbias.empty()) return;
  TERRACE_CHECK_EQ(op.dbias.elements(), N);
  Wide<T>* dbias = op.dbias.as<Wide<T>>();
  for (std::int64_t n = 0; n < N; ++n) {
    Wide<T> sum = 0;
    for (std::int64_t r = 0; r < R; ++r) sum += load(dy[r * stride + n]);
    join_gradient(dbias[n], sum, op.mode);
  }
}

}  // namespace

void matmul_forward(const KernelContext&, const MatmulForward& op) {
  with_compute_type(op.x.dtype, [&]<typename T>(std::type_identity<T>) { forward<T>(op); });
}

void matmul_backward_input(const KernelContext&, const MatmulBackwardInput& op) {
  with_compute_type(op.dy.dtype, [&]<typename T>(std::type_identity<T>) { backward_input<T>(op); });
}

void matmul_backward_weight(const KernelContext&, const MatmulBackwardWeight& op) {
  with_compute_type(op.dy.dtype,
                    [&]<typename T>(std::type_identity<T>) { backward_weight<T>(op); });
}

}  // namespace terrace::reference
