#include <vector>

#include "kernels/reference/reference_element.h"
#include "kernels/reference/reference_ops.h"

namespace terrace::reference {
namespace {

// Returns row r's position: the one that is given, or else its place in its sequence.
std::int64_t position_of(const TensorView& positions, std::int64_t r, std::int64_t sequence) {
  return positions.empty() ? r % sequence : positions.as<std::int32_t>()[r];
}

template <typename T>
void forward(const EmbeddingForward& op) {
  const std::int64_t V = op.wte.shape[0];
  const std::int64_t C = op.wte.shape[1];
  const std::int64_t R = op.tokens.elements();
  TERRACE_CHECK_EQ(op.h.elements(), R * C);
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t token = op.tokens.as<std::int32_t>()[r] - op.first_token.value_or(0);
    const bool is_here = token >= 0 && token < V;
    TERRACE_CHECK(is_here || op.first_token.has_value());
    const std::int64_t position = op.wpe.empty() ? 0 : position_of(op.positions, r, op.sequence);
    for (std::int64_t c = 0; c < C; ++c) {
      Wide<T> sum = is_here ? load(op.wte.as<T>()[token * C + c]) : Wide<T>{0};
      sum *= static_cast<Wide<T>>(op.scale);
      if (!op.wpe.empty()) sum += load(op.wpe.as<T>()[position * C + c]);
      op.h.as<T>()[r * C + c] = round_to<T>(sum);
    }
  }
}

// Returns the rows of each micro-batch that `names(m, r)` picks, in their order.
template <typename Names>
std::vector<std::vector<std::int64_t>> named_rows(const EmbeddingBackward& op, Names&& names) {
  std::vector<std::vector<std::int64_t>> rows(op.tokens.size());
  for (std::size_t m = 0; m < rows.size(); ++m) {
    for (std::int64_t r = 0; r < op.tokens[m].elements(); ++r) {
      if (names(m, r)) rows[m].push_back(r);
    }
  }
  return rows;
}

// Returns the sum of column c of the given rows of dh: each micro-batch is summed from zero in row
// order, then the micro-batches in order.
template <typename T>
Wide<T> sum_of_rows(const EmbeddingBackward& op, const std::vector<std::vector<std::int64_t>>& rows,
                    std::int64_t C, std::int64_t c) {
  Wide<T> total = 0;
  for (std::size_t m = 0; m < rows.size(); ++m) {
    const T* dh = op.dh[m].as<T>();
    Wide<T> sum = 0;
    for (const std::int64_t r : rows[m]) sum += load(dh[r * C + c]);
    total += sum;
  }
  return total;
}

template <typename T>
void backward(const EmbeddingBackward& op) {
  const std::int64_t V = op.dwte.shape[0];
  const std::int64_t C = op.dwte.shape[1];
  TERRACE_CHECK_EQ(op.tokens.size(), op.dh.size());
  TERRACE_CHECK(op.positions.empty() || op.positions.size() == op.dh.size());
  const auto scale = static_cast<Wide<T>>(op.scale);
  for (std::int64_t v = 0; v < V && !op.dwte.empty(); ++v) {
    const std::int64_t token = v + op.first_token.value_or(0);
    const auto rows = named_rows(op, [&](std::size_t m, std::int64_t r) {
      return token != op.padding_token && op.tokens[m].as<std::int32_t>()[r] == token;
    });
    for (std::int64_t c = 0; c < C; ++c) {
      join_gradient(op.dwte.as<Wide<T>>()[v * C + c], scale * sum_of_rows<T>(op, rows, C, c),
                    op.wte_mode);
    }
  }
  if (op.dwpe.empty()) return;
  for (std::int64_t p = 0; p < op.dwpe.shape[0]; ++p) {
    const auto rows = named_rows(op, [&](std::size_t m, std::int64_t r) {
      const TensorView positions = op.positions.empty() ? TensorView{} : op.positions[m];
      return position_of(positions, r, op.sequence) == p;
    });
    for (std::int64_t c = 0; c < C; ++c) {
      join_gradient(op.dwpe.as<Wide<T>>()[p * C + c], sum_of_rows<T>(op, rows, C, c),
                    GradientMode::kAssign);
    }
  }
}

template <typename T>
void add_positions_of(const AddPositions& op) {
  const std::int64_t C = op.wpe.shape[1];
  for (std::int64_t i = 0; i < op.h.elements(); ++i) {
    const std::int64_t r = i / C;
    const std::int64_t position = op.positions.empty() ? (op.first_row + r) % op.sequence
                                                       : op.positions.as<std::int32_t>()[r];
    T& h = op.h.as<T>()[i];
    h = round_to<T>(load(h) + load(op.wpe.as<T>()[position * C + i % C]));
  }
}

}  // namespace

void add_positions(const KernelContext&, const AddPositions& op) {
  with_compute_type(op.h.dtype,
                    [&]<typename T>(std::type_identity<T>) { add_positions_of<T>(op); });
}

void embedding_forward(const KernelContext&, const EmbeddingForward& op) {
  with_compute_type(op.wte.dtype, [&]<typename T>(std::type_identity<T>) { forward<T>(op); });
}

void embedding_backward(const KernelContext&, const EmbeddingBackward& op) {
  TERRACE_CHECK(!op.dh.empty());
  with_compute_type(op.dh[0].dtype, [&]<typename T>(std::type_identity<T>) { backward<T>(op); });
}

}  // namespace terrace::reference
