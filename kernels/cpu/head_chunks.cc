#include "kernels/cpu/head_chunks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/cpu_softmax.h"
#include "kernels/head_chunk.h"

namespace terrace {
namespace {

// Rows of logits in the workspace start on a cache line of either type.
constexpr std::int64_t kRowUnit = 32;
// Elements that are narrowed at a time: they fit in a first-level cache.
constexpr std::int64_t kNarrowed = 1024;

std::size_t workspace_of(const HeadShape& shape, const MatrixProduct& product, int workers) {
  return multiply_workspace(product, workers, shape.code(product));
}

}  // namespace

HeadShape::HeadShape(const HeadLoss& op)
    : V(op.weight.shape[0]),
      C(op.weight.shape[1]),
      R(op.h.elements() / C),
      chunk(std::min(R, head_chunk_rows(V))),
      stride((V + kRowUnit - 1) / kRowUnit * kRowUnit),
      dtype(op.h.dtype) {}

ProductCode HeadShape::code(const MatrixProduct& product) const {
  const ProductCode usual = product_code(product);
  return usual == ProductCode::kPairs && chunks() > 1 ? ProductCode::kOneDnn : usual;
}

MatrixProduct HeadShape::logits(std::int64_t rows) const {
  return {.shape = {.m = rows,
                    .n = V,
                    .k = C,
                    .a_stride = C,
                    .b_stride = C,
                    .c_stride = stride,
                    .input = dtype,
                    .b_transposed = true}};
}

MatrixProduct HeadShape::dh(std::int64_t rows) const {
  return {.shape = {.m = rows,
                    .n = C,
                    .k = V,
                    .a_stride = dlogits_stride(),
                    .b_stride = C,
                    .c_stride = C,
                    .input = dtype,
                    .output = dtype}};
}

MatrixProduct HeadShape::dweight(std::int64_t rows) const {
  return {.shape = {.m = V,
                    .n = C,
                    .k = rows,
                    .a_stride = dlogits_stride(),
                    .b_stride = C,
                    .c_stride = C,
                    .input = dtype,
                    .a_transposed = true},
          .gradient = GradientMode::kAssign};
}

bool HeadChunks::sums_apart(const HeadLoss& op, const HeadShape& shape) {
  return !op.dweight.empty() && op.mode == GradientMode::kAccumulate && shape.chunks() > 1;
}

HeadChunks::Workspace::Workspace(const HeadLoss& op, const HeadShape& shape) {
  const auto logits_elements = static_cast<std::size_t>(shape.chunk * shape.stride);
  losses = layout.add(static_cast<std::size_t>(shape.R) * sizeof(double));
  logits = layout.add(logits_elements * sizeof(float));
  // If the gradient is added to what is already in dweight, its chunks are summed here first,
  // because the gradient of the micro-batch must be added once.
  const auto weight_elements = static_cast<std::size_t>(shape.V * shape.C);
  if (sums_apart(op, shape)) dweight = layout.add(weight_elements * sizeof(float));
}

HeadChunks::HeadChunks(const KernelContext& context, const HeadLoss& op)
    : context_(context), op_(op), shape_(op), map_(op), at_(op, shape_), inner_(context) {
  inner_.workspace = context.workspace.subspan(at_.layout.total_bytes());
}

std::size_t HeadChunks::workspace_bytes(const HeadLoss& op, int workers) {
  const HeadShape shape(op);
  const Workspace at(op, shape);
  std::size_t most = 0;
  for (const std::int64_t rows : {shape.chunk, shape.rows_of(shape.chunks() - 1)}) {
    most = std::max(most, workspace_of(shape, shape.logits(rows), workers));
    if (!op.dh.empty()) most = std::max(most, workspace_of(shape, shape.dh(rows), workers));
    if (!op.dweight.empty()) {
      most = std::max(most, workspace_of(shape, shape.dweight(rows), workers));
    }
  }
  return at.layout.total_bytes() + most;
}

double* HeadChunks::losses() const {
  return region_at<double>(context_.workspace, at_.losses, shape_.R);
}

std::byte* HeadChunks::row_of(const TensorView& rows, std::int64_t row) const {
  return rows.data + static_cast<std::size_t>(row * shape_.C) * size_of(rows.dtype);
}

float* HeadChunks::logits_row(std::int64_t row) const {
  return reinterpret_cast<float*>(context_.workspace.data() + at_.logits) + row * shape_.stride;
}

std::byte* HeadChunks::dlogits_row(std::int64_t row) const {
  return reinterpret_cast<std::byte*>(logits_row(row));
}

void HeadChunks::clear_dlogits(std::int64_t row) const {
  std::memset(dlogits_row(row), 0, static_cast<std::size_t>(shape_.V) * size_of(shape_.dtype));
}

// A narrow gradient ends before its logit does, so in order of columns no logit is overwritten
// before it is read.
void HeadChunks::replace_row(
    std::int64_t row,
    FunctionRef<void(std::int64_t first, std::int64_t count, void* target)> round) const {
  if (shape_.dtype == DType::kF32) return round(0, shape_.V, logits_row(row));
  alignas(64) std::array<Bf16, kNarrowed> narrow;
  for (std::int64_t first = 0; first < shape_.V; first += kNarrowed) {
    const std::int64_t count = std::min(kNarrowed, shape_.V - first);
    round(first, count, narrow.data());
    std::memcpy(dlogits_row(row) + static_cast<std::size_t>(first) * sizeof(Bf16), narrow.data(),
                static_cast<std::size_t>(count) * sizeof(Bf16));
  }
}

void HeadChunks::set_dlogits(std::int64_t row, float factor) const {
  const float* logits = logits_row(row);
  replace_row(row, [&](std::int64_t first, std::int64_t count, void* target) {
    scale_row(logits + first, factor, count, target, shape_.dtype);
  });
}

void HeadChunks::set_capped_dlogits(std::int64_t row, float max, float factor) const {
  const float* logits = logits_row(row);
  replace_row(row, [&](std::int64_t first, std::int64_t count, void* target) {
    capped_gradients({logits + first, max, factor, map_.cap}, count, target, shape_.dtype);
  });
}

void HeadChunks::set_dlogit(std::int64_t row, std::int64_t column, float value) const {
  std::byte* target = dlogits_row(row) + static_cast<std::size_t>(column) * size_of(shape_.dtype);
  scale_row(&value, 1.0F, 1, target, shape_.dtype);
}

void HeadChunks::compute_logits(std::int64_t first, std::int64_t rows) const {
  MatrixProduct product = shape_.logits(rows);
  product.a = row_of(op_.h, first);
  product.b = op_.weight.data;
  product.c = context_.workspace.data() + at_.logits;
  multiply(inner_, product, shape_.code(product));
  if (map_.is_identity()) return;
  context_.workers->parallel_for(
      rows, [&](std::int64_t row, int) { map_logits(map_, logits_row(row), shape_.V); });
}

void HeadChunks::compute_input_gradient(std::int64_t first, std::int64_t rows) const {
  MatrixProduct product = shape_.dh(rows);
  product.a = dlogits_row(0);
  product.b = op_.weight.data;
  product.c = row_of(op_.dh, first);
  multiply(inner_, product, shape_.code(product));
}

void HeadChunks::add_weight_gradient(std::int64_t first, std::int64_t rows) const {
  const bool apart = sums_apart(op_, shape_);
  const bool assign = first == 0 && (apart || op_.mode == GradientMode::kAssign);
  MatrixProduct product = shape_.dweight(rows);
  product.a = dlogits_row(0);
  product.b = row_of(op_.h, first);
  product.c = apart ? context_.workspace.data() + at_.dweight : op_.dweight.data;
  product.gradient = assign ? GradientMode::kAssign : GradientMode::kAccumulate;
  multiply(inner_, product, shape_.code(product));
}

void HeadChunks::join_weight_gradient() const {
  if (!sums_apart(op_, shape_)) return;
  const float* sums = region_at<float>(context_.workspace, at_.dweight, shape_.V * shape_.C);
  float* dweight = op_.dweight.as<float>();
  context_.workers->parallel_for(shape_.V, [&](std::int64_t v, int) {
    add_row(sums + v * shape_.C, shape_.C, dweight + v * shape_.C);
  });
}

}  // namespace terrace
