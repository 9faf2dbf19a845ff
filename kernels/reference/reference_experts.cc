#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/row_range.h"

namespace terrace::reference {
namespace {
// The experts of a product: which sorted rows each has, and from which rows of a side they are
// read.
class Experts {
 public:
  explicit Experts(const ExpertRows& rows)
      : order_(rows.order.as<const std::int32_t>()),
        offsets_(rows.offsets.as<const std::int32_t>()),
        count_(rows.offsets.elements() - 1),
        per_row_(rows.per_row) {}

  std::int64_t count() const { return count_; }
  std::int64_t begin(std::int64_t e) const { return offsets_[e]; }
  std::int64_t end(std::int64_t e) const { return offsets_[e + 1]; }
  // Returns the row of a side that the sorted row i reads.
  template <typename T>
  const T* row_of(const ExpertSide& side, std::int64_t i) const {
    const std::int64_t width = side.matrix.elements() / side.matrix.shape[0];
    return side.matrix.as<const T>() + (side.is_by_row ? order_[i] / per_row_ : i) * width;
  }

 private:
  const std::int32_t* order_;
  const std::int32_t* offsets_;
  std::int64_t count_, per_row_;
};

std::int64_t width_of(const TensorView& matrix) { return matrix.elements() / matrix.shape[0]; }

template <typename T>
void forward(const ExpertForward& op) {
  const std::int64_t N = width_of(op.y);
  const std::int64_t K = width_of(op.x.matrix);
  TERRACE_CHECK_EQ(op.weights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.weights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* weight = reinterpret_cast<const T*>(op.weights.data) + e * op.weights.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* x = experts.row_of<T>(op.x, i);
      for (std::int64_t n = 0; n < N; ++n) {
        Wide<T> sum = 0;
        for (std::int64_t k = 0; k < K; ++k) sum += load(x[k]) * load(weight[n * K + k]);
        op.y.as<T>()[i * N + n] = round_to<T>(sum);
      }
    }
  }
}

template <typename T>
void backward_input(const ExpertBackwardInput& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  const std::int64_t K = width_of(op.dx);
  TERRACE_CHECK_EQ(op.weights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.weights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* weight = reinterpret_cast<const T*>(op.weights.data) + e * op.weights.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* dy = experts.row_of<T>(op.dy, i);
      for (std::int64_t k = 0; k < K; ++k) {
        Wide<T> sum = 0;
        for (std::int64_t n = 0; n < N; ++n) sum += load(dy[n]) * load(weight[n * K + k]);
        op.dx.as<T>()[i * K + k] = round_to<T>(sum);
      }
    }
  }
}

template <typename T>
void backward_weight(const ExpertBackwardWeight& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  const std::int64_t K = width_of(op.x.matrix);
  TERRACE_CHECK_EQ(op.dweights.width, N * K);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.dweights.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    auto* dweight = reinterpret_cast<Wide<T>*>(op.dweights.data) + e * op.dweights.stride;
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t k = 0; k < K; ++k) {
        Wide<T> sum = 0;
        for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
          sum += load(experts.row_of<T>(op.dy, i)[n]) * load(experts.row_of<T>(op.x, i)[k]);
        }
        join_gradient(dweight[n * K + k], sum, op.mode);
      }
    }
  }
}

template <typename T>
void add_bias(const AddExpertBias& op) {
  const std::int64_t N = width_of(op.y);
  TERRACE_CHECK_EQ(op.biases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.biases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* bias = reinterpret_cast<const T*>(op.biases.data) + e * op.biases.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      T* y = op.y.as<T>() + i * N;
      for (std::int64_t n = 0; n < N; ++n) y[n] = round_to<T>(load(y[n]) + load(bias[n]));
    }
  }
}

template <typename T>
void bias_gradient(const ExpertBiasGradient& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  TERRACE_CHECK_EQ(op.dbiases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.dbiases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    auto* dbias = reinterpret_cast<Wide<T>*>(op.dbiases.data) + e * op.dbiases.stride;
    for (std::int64_t n = 0; n < N; ++n) {
      Wide<T> sum = 0;
      for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
        const std::int32_t slot = op.rows.order.as<std::int32_t>()[i];
        const Wide<T> weight = op.weight.empty() ? 1 : op.weight.as<Wide<T>>()[slot];
        sum += weight * load(experts.row_of<T>(op.dy, i)[n]);
      }
      join_gradient(dbias[n], sum, op.mode);
    }
  }
}

template <typename T>
void bias_share(const AddBiasShare& op) {
  const std::int64_t N = width_of(op.dy.matrix);
  TERRACE_CHECK_EQ(op.biases.width, N);
  const Experts experts(op.rows);
  TERRACE_CHECK_EQ(op.biases.rows, experts.count());
  for (std::int64_t e = 0; e < experts.count(); ++e) {
    const T* bias = reinterpret_cast<const T*>(op.biases.data) + e * op.biases.stride;
    for (std::int64_t i = experts.begin(e); i < experts.end(e); ++i) {
      const T* dy = experts.row_of<T>(op.dy, i);
      Wide<T> sum = 0;
      for (std::int64_t n = 0; n < N; ++n) sum += load(dy[n]) * load(bias[n]);
      op.dweight.as<Wide<T>>()[op.rows.order.as<std::int32_t>()[i]] += sum;
    }
  }
}

template <typename T>
void sum_rows(const SumExpertRows& op) {
  const std::int64_t R = op.y.shape[0];
  const std::int64_t C = width_of(op.y);
  const std::int64_t k = op.place.elements() / R;
  TERRACE_CHECK_EQ(op.rows.elements(), R * k * C);
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int32_t* place = op.place.as<std::int32_t>() + r * k;
    for (std::int64_t c = 0; c < C; ++c) {
      Wide<T> sum = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const Wide<T> weight = op.weight.empty() ? 1 : op.weight.as<Wide<T>>()[r * k + j];
        sum += weight * load(op.rows.as<T>()[place[j] * C + c]);
      }
      op.y.as<T>()[r * C + c] = round_to<T>(sum);
    }
  }
}

template <typename T>
void weigh_rows(const WeighExpertRows& op) {
  const std::int64_t S = op.order.elements();
  const std::int64_t I = op.dh.elements() / S;
  TERRACE_CHECK_EQ(op.act.elements(), S * I);
  TERRACE_CHECK_EQ(op.dact.elements(), S * I);
  const RowRange rows = rows_in(op.row_range, S);
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int32_t slot = op.order.as<std::int32_t>()[i];
    const Wide<T> weight = op.weight.as<Wide<T>>()[slot];
    Wide<T> sum = 0;
    for (std::int64_t at = i * I; at < (i + 1) * I; ++at) {
      const Wide<T> dh = load(op.dh.as<T>()[at]);
      const Wide<T> act = load(op.act.as<T>()[at]);
      sum += dh * act;
      op.dact.as<T>()[at] = round_to<T>(weight * dh);
      if (!op.weighted.empty()) op.weighted.as<T>()[at] = round_to<T>(weight * act);
    }
    op.dweight.as<Wide<T>>()[slot] = sum;
  }
}

// Returns the share of a row, as the ops of a gate have it.
template <typename T>
Wide<T> share_of(const TensorView& logit, std::int64_t r) {
  return load(round_to<T>(sigmoid(load(logit.as<const T>()[r]))));
}

template <typename T>
void gate(const GateRows& op) {
  const std::int64_t C = width_of(op.x);
  TERRACE_CHECK_EQ(op.logit.elements(), op.x.shape[0]);
  TERRACE_CHECK_EQ(op.y.elements(), op.x.elements());
  for (std::int64_t i = 0; i < op.x.elements(); ++i) {
    op.y.as<T>()[i] = round_to<T>(share_of<T>(op.logit, i / C) * load(op.x.as<const T>()[i]));
  }
}

template <typename T>
void gate_gradient(const GateRowsBackward& op) {
  const std::int64_t R = op.x.shape[0];
  const std::int64_t C = width_of(op.x);
  TERRACE_CHECK_EQ(op.logit.elements(), R);
  TERRACE_CHECK_EQ(op.dlogit.elements(), R);
  TERRACE_CHECK_EQ(op.dx.elements(), op.x.elements());
  for (std::int64_t r = 0; r < R; ++r) {
    const Wide<T> share = share_of<T>(op.logit, r);
    Wide<T> sum = 0;
    for (std::int64_t i = r * C; i < (r + 1) * C; ++i) {
      const Wide<T> dy = load(op.dy.as<const T>()[i]);
      sum += dy * load(op.x.as<const T>()[i]);
      op.dx.as<T>()[i] = round_to<T>(share * dy);
    }
    op.dlogit.as<T>()[r] = round_to<T>(share * (1 - share) * sum);
  }
}

}  // namespace

void sort_slots(const KernelContext&, const SortSlots& op) {
  const std::int64_t S = op.index.elements();
  const std::int64_t E = op.offsets.elements() - 1;
  const std::int32_t* index = op.index.as<std::int32_t>();
  std::int32_t at = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    op.offsets.as<std::int32_t>()[e] = at;
    for (std::int64_t slot = 0; slot < S; ++slot) {
      if (index[slot] != e) continue;
      op.order.as<std::int32_t>()[at] = static_cast<std::int32_t>(slot);
      op.place.as<std::int32_t>()[slot] = at++;
    }
  }
  op.offsets.as<std::int32_t>()[E] = at;
  TERRACE_CHECK_EQ(at, S);
}

void expert_forward(const KernelContext&, const ExpertForward& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { forward<T>(op); });
}

void expert_backward_input(const KernelContext&, const ExpertBackwardInput& op) {
  with_compute_type(op.dx.dtype, [&]<typename T>(std::type_identity<T>) { backward_input<T>(op); });
}

void expert_backward_weight(const KernelContext&, const ExpertBackwardWeight& op) {
  with_compute_type(op.x.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { backward_weight<T>(op); });
}

void add_expert_bias(const KernelContext&, const AddExpertBias& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { add_bias<T>(op); });
}

void expert_bias_gradient(const KernelContext&, const ExpertBiasGradient& op) {
  with_compute_type(op.dy.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { bias_gradient<T>(op); });
}

void add_bias_share(const KernelContext&, const AddBiasShare& op) {
  with_compute_type(op.dy.matrix.dtype,
                    [&]<typename T>(std::type_identity<T>) { bias_share<T>(op); });
}

void sum_expert_rows(const KernelContext&, const SumExpertRows& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { sum_rows<T>(op); });
}

void weigh_expert_rows(const KernelContext&, const WeighExpertRows& op) {
  with_compute_type(op.act.dtype, [&]<typename T>(std::type_identity<T>) { weigh_rows<T>(op); });
}

void gate_rows(const KernelContext&, const GateRows& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) { gate<T>(op); });
}

void gate_rows_backward(const KernelContext&, const GateRowsBackward& op) {
  with_compute_type(op.dx.dtype, [&]<typename T>(std::type_identity<T>) { gate_gradient<T>(op); });
}

}  // namespace terrace::reference
