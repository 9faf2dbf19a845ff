#include "kernels/cpu/streamed_head_loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/logit_rows.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/norm_tree.h"

// Letters: R rows, V vocabulary, C width.
namespace terrace {
namespace {

// The gradients of logits that are in memory at once, in elements, and the fewest and the most
// columns that a part has.
constexpr std::int64_t kPartElements = std::int64_t{4} << 20;
constexpr std::int64_t kPartColumnsMin = 512;
constexpr std::int64_t kPartColumnsMax = 8192;
constexpr std::int64_t kRowBlock = 16;

struct StreamedShape {
  explicit StreamedShape(const HeadLoss& op)
      : V(op.weight.shape[0]), C(op.weight.shape[1]), R(op.h.elements() / C) {
    const std::int64_t fitting = kPartElements / R / kPartColumnsMin * kPartColumnsMin;
    part = std::min(V, std::clamp(fitting, kPartColumnsMin, kPartColumnsMax));
    block = product_block_columns(logits(V).shape, product_code(DType::kBF16));
    blocks = blocks_of(V, block);
  }

  // logits [R,columns] = h weight^T
  MatrixProduct logits(std::int64_t columns) const {
    return {.shape = {.m = R,
                      .n = columns,
                      .k = C,
                      .a_stride = C,
                      .b_stride = C,
                      .input = DType::kBF16,
                      .b_transposed = true}};
  }
  // dweight [columns,C] = dlogits^T h
  MatrixProduct dweight(std::int64_t columns) const {
    return {.shape = {.m = columns,
                      .n = C,
                      .k = R,
                      .a_stride = part,
                      .b_stride = C,
                      .c_stride = C,
                      .input = DType::kBF16,
                      .a_transposed = true},
            .gradient = GradientMode::kAssign};
  }
  // dh [R,C] (fp32) += dlogits weight
  MatrixProduct dh(std::int64_t columns) const {
    return {.shape = {.m = R,
                      .n = C,
                      .k = columns,
                      .a_stride = part,
                      .b_stride = C,
                      .c_stride = C,
                      .input = DType::kBF16},
            .gradient = GradientMode::kAccumulate};
  }

  std::int64_t V, C, R;
  std::int64_t part = 0;               // columns of the vocabulary that are worked on at once
  std::int64_t block = 0, blocks = 0;  // columns that the first pass sums together
};

// Offsets in the workspace; the products' own workspace follows.
struct StreamedWorkspace {
  StreamedWorkspace(const HeadLoss& op, const StreamedShape& shape) {
    const auto R = static_cast<std::size_t>(shape.R);
    losses = layout.add(R * sizeof(double));
    target_logits = layout.add(R * sizeof(float));
    exponentials = layout.add(R * static_cast<std::size_t>(shape.blocks) * sizeof(RowExponentials));
    if (op.dh.empty()) return;
    gradients = layout.add(R * sizeof(RowGradient));
    dlogits = layout.add(R * static_cast<std::size_t>(shape.part) * sizeof(Bf16));
    dh = layout.add(R * static_cast<std::size_t>(shape.C) * sizeof(float));
  }
  WorkspaceLayout layout;
  std::size_t losses = 0, target_logits = 0, exponentials = 0, gradients = 0, dlogits = 0, dh = 0;
};

class StreamedHead {
 public:
  StreamedHead(const KernelContext& context, const HeadLoss& op, std::int64_t first_token = 0)
      : op_(op), first_token_(first_token), shape_(op), map_(op), inner_(context) {
    const StreamedWorkspace at(op, shape_);
    const auto memory = context.workspace;
    losses_ = region_at<double>(memory, at.losses, shape_.R);
    target_logits_ = region_at<float>(memory, at.target_logits, shape_.R);
    exponentials_ = region_at<RowExponentials>(memory, at.exponentials, shape_.R * shape_.blocks);
    if (!op.dh.empty()) {
      gradients_ = region_at<RowGradient>(memory, at.gradients, shape_.R);
      dlogits_ = region_at<Bf16>(memory, at.dlogits, shape_.R * shape_.part);
      dh_ = region_at<float>(memory, at.dh, shape_.R * shape_.C);
    }
    inner_.workspace = memory.subspan(at.layout.total_bytes());
  }

  void run() {
    sum_logits();
    inner_.workers->parallel_for(shape_.R, [&](std::int64_t row, int) { finish_row(row); });
    *op_.loss_sum = tree_sum({losses_, static_cast<std::size_t>(shape_.R)});
    if (!op_.dh.empty()) second_pass();
  }

  void run_sums(LogitSums* sums) {
    sum_logits();
    inner_.workers->parallel_for(shape_.R, [&](std::int64_t row, int) {
      sums[row] = {};
      if (op_.target.as<const std::int32_t>()[row] < 0) return;
      const RowTotal total = total_of(row);
      const std::int64_t target = target_of(row);
      sums[row].max = total.max;
      sums[row].sum = static_cast<float>(total.sum);
      if (target >= 0 && target < shape_.V) sums[row].target = target_logits_[row];
    });
  }

  void run_gradients(FunctionRef<RowGradient(std::int64_t row)> gradient_of) {
    inner_.workers->parallel_for(
        shape_.R, [&](std::int64_t row, int) { gradients_[row] = gradient_of(row); });
    second_pass();
  }

 private:
  struct RowTotal {
    float max = 0.0F;
    double sum = 0.0;
  };

  void second_pass() {
    for (std::int64_t first = 0; first < shape_.V; first += shape_.part) {
      const std::int64_t columns = std::min(shape_.part, shape_.V - first);
      make_dlogits(first, columns);
      if (!op_.dweight.empty()) add_weight_gradient(first, columns);
      add_input_gradient(first, columns);
    }
    round_input_gradient();
  }

  // Returns a row's target, counted from the first token of the part.
  std::int64_t target_of(std::int64_t row) const {
    return op_.target.as<const std::int32_t>()[row] - first_token_;
  }
  std::byte* weight_row(std::int64_t v) const {
    return op_.weight.data + static_cast<std::size_t>(v * shape_.C) * sizeof(Bf16);
  }

  void sum_logits() {
    const auto sum_block = [&](const ProductSums& sums, std::int64_t row, std::int64_t column) {
      if (!map_.is_identity()) map_logits(map_, sums);
      sum_exponentials(sums, exponentials_ + row * shape_.blocks + column / shape_.block,
                       shape_.blocks);
      for (std::int64_t r = 0; r < sums.rows; ++r) {
        const std::int64_t at = target_of(row + r) - column;
        if (at < 0 || at >= sums.columns) continue;
        target_logits_[row + r] = sums.run_at(r, at / kSumsRun * kSumsRun)[at % kSumsRun];
      }
    };
    const FunctionRef<void(const ProductSums&, std::int64_t, std::int64_t)> consumer(sum_block);
    MatrixProduct product = shape_.logits(shape_.V);
    product.a = op_.h.data;
    product.b = op_.weight.data;
    product.consumer = &consumer;
    multiply(inner_, product);
  }

  RowTotal total_of(std::int64_t row) const {
    const RowExponentials* parts = exponentials_ + row * shape_.blocks;
    RowTotal total{parts[0].max, 0.0};
    for (std::int64_t b = 1; b < shape_.blocks; ++b) total.max = std::max(total.max, parts[b].max);
    for (std::int64_t b = 0; b < shape_.blocks; ++b) {
      total.sum += parts[b].sum * std::exp(static_cast<double>(parts[b].max) - total.max);
    }
    return total;
  }

  // Computes the row's loss, and how its logits become gradients.
  void finish_row(std::int64_t row) {
    const auto target = static_cast<std::int32_t>(target_of(row));
    if (target < 0) {
      losses_[row] = 0.0;
      if (!op_.dh.empty()) gradients_[row] = RowGradient{};
      return;
    }
    TERRACE_CHECK_LT(target, shape_.V);
    const auto [max, sum] = total_of(row);
    const float distance = target_logits_[row] - max;
    losses_[row] = std::log(sum) - static_cast<double>(distance);
    if (op_.dh.empty()) return;
    const double factor = static_cast<double>(op_.gradient_scale) * op_.logit_scale / sum;
    const double at_target = factor * (std::exp(static_cast<double>(distance)) - sum);
    gradients_[row] = {.max = max,
                       .factor = static_cast<float>(factor),
                       .at_target = static_cast<float>(at_target * map_.slope(target_logits_[row])),
                       .target = target};
  }

  void make_dlogits(std::int64_t first, std::int64_t columns) {
    const auto round_part = [&](const ProductSums& sums, std::int64_t row, std::int64_t column) {
      if (!map_.is_identity()) map_logits(map_, sums);
      round_logit_gradients(sums, first + column,
                            {.rows = gradients_ + row,
                             .target = dlogits_ + row * shape_.part + column,
                             .stride = shape_.part,
                             .cap = map_.cap});
    };
    const FunctionRef<void(const ProductSums&, std::int64_t, std::int64_t)> consumer(round_part);
    MatrixProduct product = shape_.logits(columns);
    product.a = op_.h.data;
    product.b = weight_row(first);
    product.consumer = &consumer;
    multiply(inner_, product);
  }

  void add_weight_gradient(std::int64_t first, std::int64_t columns) {
    MatrixProduct product = shape_.dweight(columns);
    product.a = reinterpret_cast<const std::byte*>(dlogits_);
    product.b = op_.h.data;
    product.c = op_.dweight.data + static_cast<std::size_t>(first * shape_.C) * sizeof(float);
    product.gradient = op_.mode;
    multiply(inner_, product);
  }

  void add_input_gradient(std::int64_t first, std::int64_t columns) {
    MatrixProduct product = shape_.dh(columns);
    product.a = reinterpret_cast<const std::byte*>(dlogits_);
    product.b = weight_row(first);
    product.c = reinterpret_cast<std::byte*>(dh_);
    product.gradient = first == 0 ? GradientMode::kAssign : GradientMode::kAccumulate;
    multiply(inner_, product);
  }

  void round_input_gradient() {
    for_each_block(inner_, shape_.R, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * shape_.C;
      scale_row(dh_ + at, 1.0F, (end - begin) * shape_.C, op_.dh.as<Bf16>() + at, DType::kBF16);
    });
  }

  const HeadLoss& op_;
  std::int64_t first_token_;
  StreamedShape shape_;
  LogitMap map_;
  KernelContext inner_;  // with the workspace of the products
  double* losses_ = nullptr;
  float* target_logits_ = nullptr;
  RowExponentials* exponentials_ = nullptr;  // [R, blocks]
  RowGradient* gradients_ = nullptr;
  Bf16* dlogits_ = nullptr;  // [R, part]
  float* dh_ = nullptr;      // [R, C]
};

}  // namespace

bool streams_head_loss(const HeadLoss& op) {
  return op.logits.empty() && product_code(op.h.dtype) == ProductCode::kAmx;
}

void streamed_head_loss(const KernelContext& context, const HeadLoss& op) {
  StreamedHead(context, op).run();
}

void streamed_head_sums(const KernelContext& context, const HeadLoss& op, std::int64_t first_token,
                        LogitSums* sums) {
  StreamedHead(context, op, first_token).run_sums(sums);
}

void streamed_head_gradients(const KernelContext& context, const HeadLoss& op,
                             FunctionRef<RowGradient(std::int64_t row)> gradient_of) {
  StreamedHead(context, op).run_gradients(gradient_of);
}

std::size_t streamed_head_loss_workspace(const HeadLoss& op, int workers) {
  const StreamedShape shape(op);
  const StreamedWorkspace at(op, shape);
  const std::int64_t last = shape.V - (blocks_of(shape.V, shape.part) - 1) * shape.part;
  // It matters only whether there is a consumer.
  const auto ignore = [](const ProductSums&, std::int64_t, std::int64_t) {};
  const FunctionRef<void(const ProductSums&, std::int64_t, std::int64_t)> consumer(ignore);
  const auto logits_bytes = [&](std::int64_t columns) {
    MatrixProduct product = shape.logits(columns);
    product.consumer = &consumer;
    return multiply_workspace(product, workers);
  };
  std::size_t most = logits_bytes(shape.V);
  for (const std::int64_t columns : {shape.part, last}) {
    if (op.dh.empty()) break;
    most =
        std::max({most, logits_bytes(columns), multiply_workspace(shape.dweight(columns), workers),
                  multiply_workspace(shape.dh(columns), workers)});
  }
  return at.layout.total_bytes() + most;
}

}  // namespace terrace
