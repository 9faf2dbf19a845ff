#include "kernels/cpu/block_gemm.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/product_result.h"

namespace terrace {
namespace {

// Offsets in the scratch memory.
struct BlockScratch {
  explicit BlockScratch(const GemmShape& shape) {
    const auto strip = static_cast<std::size_t>(strip_elements(shape.k)) * sizeof(Bf16);
    const auto rows = static_cast<std::size_t>(strips_of(shape.m));
    const auto columns = static_cast<std::size_t>(strips_of(shape.n));
    left = layout.add(rows * strip);
    right = layout.add(columns * strip);
    tiles = layout.add(rows * columns * kStrip * kStrip * sizeof(float));
  }
  WorkspaceLayout layout;
  std::size_t left = 0, right = 0, tiles = 0;
};

struct PackedOperand {
  const std::byte* data = nullptr;
  std::int64_t stride = 0, extent = 0, depth = 0;
  bool depth_contiguous = false;
};

void pack(const PackedOperand& operand, Bf16* target, void (*pack_strip)(const PackStrip&)) {
  const auto* source = reinterpret_cast<const Bf16*>(operand.data);
  const std::int64_t across = operand.depth_contiguous ? operand.stride : 1;
  for (std::int64_t first = 0; first < operand.extent; first += kStrip) {
    pack_strip({.source = source + first * across,
                .stride = operand.stride,
                .width = std::min(kStrip, operand.extent - first),
                .depth = operand.depth,
                .depth_contiguous = operand.depth_contiguous,
                .target = target});
    target += strip_elements(operand.depth);
  }
}

void amx_gemm(const GemmShape& shape, const GemmOperands& operands) {
  const BlockScratch at(shape);
  TERRACE_CHECK_LE(at.layout.total_bytes(), operands.scratch.size());
  auto* left = reinterpret_cast<Bf16*>(operands.scratch.data() + at.left);
  auto* right = reinterpret_cast<Bf16*>(operands.scratch.data() + at.right);
  auto* tiles = reinterpret_cast<float*>(operands.scratch.data() + at.tiles);
  pack({operands.a, shape.a_stride, shape.m, shape.k, !shape.a_transposed}, left, pack_left_strip);
  pack({operands.b, shape.b_stride, shape.n, shape.k, shape.b_transposed}, right, pack_right_strip);
  multiply_packed({.left = left,
                   .right = right,
                   .left_strips = strips_of(shape.m),
                   .right_strips = strips_of(shape.n),
                   .depth = shape.k,
                   .tiles = tiles});
  store_product(
      {.data = tiles, .left_strips = strips_of(shape.m), .rows = shape.m, .columns = shape.n},
      {.data = operands.c,
       .stride = shape.c_stride,
       .gradient = shape.accumulate ? GradientMode::kAccumulate : GradientMode::kAssign});
}

}  // namespace

void block_gemm(const GemmShape& shape, const GemmOperands& operands) {
  TERRACE_CHECK(shape.output == DType::kF32 && !shape.has_bias);
  if (product_code(shape.input) == ProductCode::kAmx) return amx_gemm(shape, operands);
  gemm(shape, operands);
}

std::size_t block_gemm_scratch_bytes(const GemmShape& shape) {
  if (product_code(shape.input) == ProductCode::kAmx) {
    return BlockScratch(shape).layout.total_bytes();
  }
  return gemm_scratch_bytes(shape);
}

}  // namespace terrace
