#include "kernels/cpu/packed_operand.h"

#include <algorithm>

#include "kernels/cpu/parallel_blocks.h"

namespace terrace {

std::int64_t even_part(std::int64_t extent, std::int64_t limit) {
  return round_to_strips(blocks_of(extent, blocks_of(extent, limit)));
}

PackStrip Operand::strip(std::int64_t first, std::int64_t begin, std::byte* target) const {
  const std::int64_t across = depth_contiguous ? stride : 1;
  const std::int64_t along = depth_contiguous ? 1 : stride;
  const std::int64_t offset = first * across + begin * along;
  return {.source = data + offset * static_cast<std::int64_t>(size_of(type)),
          .type = type,
          .stride = stride,
          .width = std::min(kStrip, extent - first),
          .depth = std::min(kPackDepth, depth - begin),
          .depth_contiguous = depth_contiguous,
          .target = target};
}

Operand left_operand(const MatrixProduct& product) {
  const GemmShape& shape = product.shape;
  return {product.a, shape.input, shape.a_stride, shape.m, shape.k, !shape.a_transposed};
}

Operand right_operand(const MatrixProduct& product) {
  const GemmShape& shape = product.shape;
  return {product.b, shape.input, shape.b_stride, shape.n, shape.k, shape.b_transposed};
}

void pack_part(WorkerArena& workers, const StripCode& code, const OperandPart& part,
               void (*pack_strip)(const PackStrip&)) {
  // A task packs kPackDepth of the depth of neighbouring strips, so that it reads on along stored
  // rows.
  constexpr std::int64_t kPackStrips = 16;
  const Operand& operand = part.operand;
  const std::int64_t strips = strips_of(part.extent);
  const std::int64_t groups = blocks_of(strips, kPackStrips);
  const std::int64_t depths = blocks_of(operand.depth, kPackDepth);
  workers.parallel_for(groups * depths, [&](std::int64_t index, int) {
    const std::int64_t depth = index / groups * kPackDepth;
    const std::int64_t begin = index % groups * kPackStrips;
    for (std::int64_t s = begin; s < std::min(begin + kPackStrips, strips); ++s) {
      const std::int64_t at = s * strip_elements(operand.depth) + depth * kStrip;
      pack_strip(operand.strip(part.first + s * kStrip, depth, part.target + code.bytes(at)));
    }
  });
}

ProductTarget target_at(const MatrixProduct& product, std::int64_t row, std::int64_t column) {
  const GemmShape& shape = product.shape;
  ProductTarget target;
  target.data = product.c +
                (row * shape.c_stride + column) * static_cast<std::int64_t>(size_of(shape.output));
  target.stride = shape.c_stride;
  target.dtype = shape.output;
  if (shape.has_bias) {
    target.bias = product.bias + column * static_cast<std::int64_t>(size_of(shape.bias_dtype));
    target.bias_dtype = shape.bias_dtype;
  }
  target.gradient = product.gradient;
  return target;
}

}  // namespace terrace
