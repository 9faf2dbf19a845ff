#include "kernels/cpu/cpu_head_loss.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/streamed_head_loss.h"
#include "kernels/head_chunk.h"
#include "kernels/norm_tree.h"

// Letters: R rows, V vocabulary, C width.
namespace terrace {
namespace {

// Rows of logits in the workspace start on a cache line of either type.
constexpr std::int64_t kRowUnit = 32;

struct HeadShape {
  explicit HeadShape(const HeadLoss& op)
      : V(op.weight.shape[0]),
        C(op.weight.shape[1]),
        R(op.h.elements() / C),
        chunk(std::min(R, head_chunk_rows(V))),
        stride((V + kRowUnit - 1) / kRowUnit * kRowUnit),
        dtype(op.h.dtype) {}

  std::int64_t chunks() const { return (R + chunk - 1) / chunk; }
  std::int64_t rows_of(std::int64_t index) const { return std::min(chunk, R - index * chunk); }

  // logits [rows,V] = h weight^T
  MatrixProduct logits(std::int64_t rows) const {
    return {.shape = {.m = rows,
                      .n = V,
                      .k = C,
                      .a_stride = C,
                      .b_stride = C,
                      .c_stride = stride,
                      .input = dtype,
                      .b_transposed = true}};
  }
  // dh [rows,C] = dlogits weight
  MatrixProduct dh(std::int64_t rows) const {
    return {.shape = {.m = rows,
                      .n = C,
                      .k = V,
                      .a_stride = stride,
                      .b_stride = C,
                      .c_stride = C,
                      .input = dtype,
                      .output = dtype}};
  }
  // The chunk's part of dweight [V,C] = dlogits^T h
  MatrixProduct dweight(std::int64_t rows) const {
    return {.shape = {.m = V,
                      .n = C,
                      .k = rows,
                      .a_stride = stride,
                      .b_stride = C,
                      .c_stride = C,
                      .input = dtype,
                      .a_transposed = true},
            .gradient = GradientMode::kAssign};
  }

  std::int64_t V, C, R, chunk, stride;
  DType dtype;
};

bool sums_apart(const HeadLoss& op, const HeadShape& shape) {
  return !op.dweight.empty() && op.mode == GradientMode::kAccumulate && shape.chunks() > 1;
}

// Offsets in the workspace; what the products need follows.
struct HeadWorkspace {
  HeadWorkspace(const HeadLoss& op, const HeadShape& shape) {
    const auto logits_elements = static_cast<std::size_t>(shape.chunk * shape.stride);
    losses = layout.add(static_cast<std::size_t>(shape.R) * sizeof(double));
    logits = layout.add(logits_elements * sizeof(float));
    const bool in_place = shape.dtype == DType::kF32 || op.dh.empty();
    dlogits = in_place ? logits : layout.add(logits_elements * size_of(shape.dtype));
    // Chunks of a gradient that joins what is already in dweight are added up here first, because
    // the gradient of the micro-batch is to join it once.
    const auto weight_elements = static_cast<std::size_t>(shape.V * shape.C);
    if (sums_apart(op, shape)) dweight = layout.add(weight_elements * sizeof(float));
  }
  WorkspaceLayout layout;
  std::size_t losses = 0, logits = 0, dlogits = 0, dweight = 0;
};

class HeadRun {
 public:
  HeadRun(const KernelContext& context, const HeadLoss& op)
      : context_(context), op_(op), shape_(op), at_(op, shape_), inner_(context) {
    inner_.workspace = context.workspace.subspan(at_.layout.total_bytes());
  }

  void run() {
    for (std::int64_t index = 0; index < shape_.chunks(); ++index) {
      const std::int64_t first = index * shape_.chunk;
      const std::int64_t rows = shape_.rows_of(index);
      compute_logits(first, rows);
      if (!op_.logits.empty()) copy_logits(first, rows);
      if (!op_.target.empty()) compute_losses(first, rows);
      if (!op_.dweight.empty()) add_weight_gradient(first, rows);
      if (!op_.dh.empty()) compute_input_gradient(first, rows);
    }
    if (sums_apart(op_, shape_)) join_weight_gradient();
    if (op_.target.empty()) return;
    const double* losses = region_at<double>(context_.workspace, at_.losses, shape_.R);
    *op_.loss_sum = tree_sum({losses, static_cast<std::size_t>(shape_.R)});
  }

 private:
  std::byte* row_of(const TensorView& rows, std::int64_t row) const {
    return rows.data + static_cast<std::size_t>(row * shape_.C) * size_of(rows.dtype);
  }
  float* logits_row(std::int64_t row) const {
    return reinterpret_cast<float*>(context_.workspace.data() + at_.logits) + row * shape_.stride;
  }
  std::byte* dlogits_row(std::int64_t row) const {
    return context_.workspace.data() + at_.dlogits +
           static_cast<std::size_t>(row * shape_.stride) * size_of(shape_.dtype);
  }

  void compute_logits(std::int64_t first, std::int64_t rows) const {
    MatrixProduct product = shape_.logits(rows);
    product.a = row_of(op_.h, first);
    product.b = op_.weight.data;
    product.c = context_.workspace.data() + at_.logits;
    multiply(inner_, product);
  }

  void copy_logits(std::int64_t first, std::int64_t rows) const {
    float* target = op_.logits.as<float>() + first * shape_.V;
    context_.workers->parallel_for(rows, [&](std::int64_t row, int) {
      std::copy_n(logits_row(row), shape_.V, target + row * shape_.V);
    });
  }

  // The row's loss; with gradients wanted, dlogits = gradient_scale * (softmax - [target]).
  double loss_of_row(std::int64_t row, std::int32_t target) const {
    if (target < 0) {
      if (!op_.dh.empty()) {
        std::memset(dlogits_row(row), 0,
                    static_cast<std::size_t>(shape_.V) * size_of(shape_.dtype));
      }
      return 0.0;
    }
    TERRACE_CHECK_LT(target, shape_.V);
    float* logits = logits_row(row);
    const double target_logit = logits[target];
    const ExpRow exps = exponentiate_row(logits, shape_.V);
    if (!op_.dh.empty()) {
      const double factor = static_cast<double>(op_.gradient_scale) / exps.sum;
      const auto at_target =
          static_cast<float>(factor * (static_cast<double>(logits[target]) - exps.sum));
      std::byte* dlogits = dlogits_row(row);
      scale_row(logits, static_cast<float>(factor), shape_.V, dlogits, shape_.dtype);
      scale_row(&at_target, 1.0F, 1,
                dlogits + static_cast<std::size_t>(target) * size_of(shape_.dtype), shape_.dtype);
    }
    return static_cast<double>(exps.max) - target_logit + std::log(exps.sum);
  }

  void compute_losses(std::int64_t first, std::int64_t rows) const {
    const std::int32_t* targets = op_.target.as<std::int32_t>() + first;
    double* losses = region_at<double>(context_.workspace, at_.losses, shape_.R) + first;
    context_.workers->parallel_for(
        rows, [&](std::int64_t row, int) { losses[row] = loss_of_row(row, targets[row]); });
  }

  void compute_input_gradient(std::int64_t first, std::int64_t rows) const {
    MatrixProduct product = shape_.dh(rows);
    product.a = dlogits_row(0);
    product.b = op_.weight.data;
    product.c = row_of(op_.dh, first);
    multiply(inner_, product);
  }

  // Chunk 0 is stored as 0 + g, the others are added to it. A single chunk joins dweight at once.
  void add_weight_gradient(std::int64_t first, std::int64_t rows) const {
    const bool apart = sums_apart(op_, shape_);
    const bool assign = first == 0 && (apart || op_.mode == GradientMode::kAssign);
    MatrixProduct product = shape_.dweight(rows);
    product.a = dlogits_row(0);
    product.b = row_of(op_.h, first);
    product.c = apart ? context_.workspace.data() + at_.dweight : op_.dweight.data;
    product.gradient = assign ? GradientMode::kAssign : GradientMode::kAccumulate;
    multiply(inner_, product);
  }

  void join_weight_gradient() const {
    const float* sums = region_at<float>(context_.workspace, at_.dweight, shape_.V * shape_.C);
    float* dweight = op_.dweight.as<float>();
    context_.workers->parallel_for(shape_.V, [&](std::int64_t v, int) {
      add_row(sums + v * shape_.C, shape_.C, dweight + v * shape_.C);
    });
  }

  const KernelContext& context_;
  const HeadLoss& op_;
  HeadShape shape_;
  HeadWorkspace at_;
  KernelContext inner_;  // with the workspace of the products
};

}  // namespace

void cpu_head_loss(const KernelContext& context, const HeadLoss& op) {
  TERRACE_CHECK(!op.target.empty() || op.dh.empty());
  TERRACE_CHECK(op.target.empty() || op.loss_sum != nullptr);
  TERRACE_CHECK(op.dweight.empty() || !op.dh.empty());
  TERRACE_CHECK(op.h.dtype == op.weight.dtype);
  if (streams_head_loss(op)) return streamed_head_loss(context, op);
  HeadRun(context, op).run();
}

std::size_t cpu_head_loss_workspace(const HeadLoss& op, int workers) {
  if (streams_head_loss(op)) return streamed_head_loss_workspace(op, workers);
  const HeadShape shape(op);
  const HeadWorkspace at(op, shape);
  std::size_t most = 0;
  for (const std::int64_t rows : {shape.chunk, shape.rows_of(shape.chunks() - 1)}) {
    most = std::max(most, multiply_workspace(shape.logits(rows), workers));
    if (!op.dh.empty()) most = std::max(most, multiply_workspace(shape.dh(rows), workers));
    if (!op.dweight.empty()) {
      most = std::max(most, multiply_workspace(shape.dweight(rows), workers));
    }
  }
  return at.layout.total_bytes() + most;
}

}  // namespace terrace
