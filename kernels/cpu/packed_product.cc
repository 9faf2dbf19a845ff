#include "kernels/cpu/packed_product.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/packed_operand.h"
#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/cpu/product_result.h"

namespace terrace {
namespace {

// A block of c keeps its sums, 256 KiB, and its strips of a step of the depth in a second-level
// cache. Products with few blocks use smaller blocks, so that workers are not idle.
constexpr std::int64_t kBlockMax = 384;
constexpr std::int64_t kBlockMin = 64;
constexpr std::int64_t kBlocksMin = 16;
// Elements of an operand that are packed at once, unless one block needs more.
constexpr std::int64_t kPackedMax = std::int64_t{8} << 20;

struct Block {
  std::int64_t rows = 0, columns = 0;
};

Block block_of(const GemmShape& shape) {
  std::int64_t limit_m = kBlockMax;
  std::int64_t limit_n = kBlockMax;
  while (blocks_of(shape.m, limit_m) * blocks_of(shape.n, limit_n) < kBlocksMin &&
         std::max(limit_m, limit_n) > kBlockMin) {
    (limit_m >= limit_n ? limit_m : limit_n) /= 2;
  }
  return {even_part(shape.m, limit_m), even_part(shape.n, limit_n)};
}

// How a product of a shape is cut into blocks and packed parts.
struct Cut {
  Cut(const GemmShape& shape, const StripCode& code) {
    const Block block = block_of(shape);
    block_m = block.rows;
    block_n = block.columns;
    part_m = part_of(shape.m, block_m, shape.k);
    part_n = part_of(shape.n, block_n, shape.k);
    const std::int64_t strip = code.bytes(strip_elements(shape.k));
    packed_a = layout.add(static_cast<std::size_t>(strips_of(part_m) * strip));
    packed_b = layout.add(static_cast<std::size_t>(strips_of(part_n) * strip));
  }

  std::size_t sums_bytes() const {
    return static_cast<std::size_t>(block_m * block_n) * sizeof(float);
  }
  // Returns the most blocks that are computed at once: the blocks of the parts that are packed.
  std::int64_t blocks() const { return blocks_of(part_m, block_m) * blocks_of(part_n, block_n); }

  std::int64_t block_m = 0, block_n = 0;  // rows and columns of a block
  std::int64_t part_m = 0, part_n = 0;    // rows and columns that are packed at once
  WorkspaceLayout layout;                 // the workers' sums follow
  std::size_t packed_a = 0, packed_b = 0;

 private:
  // Returns the rows or columns of an operand that are packed at once, as whole blocks.
  static std::int64_t part_of(std::int64_t extent, std::int64_t block, std::int64_t depth) {
    const std::int64_t blocks = kPackedMax / (block * round_to_strips(depth));
    return std::min(round_to_strips(extent), std::max<std::int64_t>(1, blocks) * block);
  }
};

class ProductRun {
 public:
  ProductRun(const KernelContext& context, const MatrixProduct& product, const StripCode& code)
      : context_(context),
        product_(product),
        shape_(product.shape),
        code_(code),
        cut_(product.shape, code),
        workers_(fed_workers(context.workers->threads(), cut_.blocks(), product.shape.flops())) {
    TERRACE_CHECK_LE(cut_.layout.total_bytes(), context.workspace.size());
    packed_a_ = context.workspace.data() + cut_.packed_a;
    packed_b_ = context.workspace.data() + cut_.packed_b;
  }

  void run() {
    for (std::int64_t m = 0; m < shape_.m; m += cut_.part_m) {
      for (std::int64_t n = 0; n < shape_.n; n += cut_.part_n) {
        pack(m, n, n == 0);
        multiply_part(m, n);
      }
    }
  }

 private:
  // Packs the part of b from column n on and, unless it is packed already, the part of a from row m
  // on.
  void pack(std::int64_t m, std::int64_t n, bool with_a) {
    WorkerArena& workers = *context_.workers;
    if (with_a) {
      const std::int64_t rows = std::min(cut_.part_m, shape_.m - m);
      pack_part(workers, code_, {left_operand(product_), m, rows, packed_a_}, code_.pack_left);
    }
    const std::int64_t columns = std::min(cut_.part_n, shape_.n - n);
    pack_part(workers, code_, {right_operand(product_), n, columns, packed_b_}, code_.pack_right);
  }

  void multiply_part(std::int64_t m, std::int64_t n) {
    const std::int64_t end_m = std::min(m + cut_.part_m, shape_.m);
    const std::int64_t end_n = std::min(n + cut_.part_n, shape_.n);
    const std::int64_t row_blocks = blocks_of(end_m - m, cut_.block_m);
    const std::int64_t column_blocks = blocks_of(end_n - n, cut_.block_n);
    // Blocks that follow each other share columns.
    const std::int64_t blocks = row_blocks * column_blocks;
    context_.workers->parallel_for(blocks, workers_, [&](std::int64_t index, int worker) {
      const std::int64_t row = index % row_blocks * cut_.block_m;
      const std::int64_t column = index / row_blocks * cut_.block_n;
      const auto share = worker_share(context_, cut_.layout.total_bytes(), workers_, worker);
      float* tiles = region_at<float>(share, 0, cut_.block_m * cut_.block_n);
      ProductSums sums;
      sums.data = tiles;
      sums.rows = std::min(cut_.block_m, end_m - m - row);
      sums.columns = std::min(cut_.block_n, end_n - n - column);
      sums.left_strips = strips_of(sums.rows);
      const std::int64_t strip = strip_elements(shape_.k);
      code_.multiply({.left = packed_a_ + code_.bytes(row / kStrip * strip),
                      .right = packed_b_ + code_.bytes(column / kStrip * strip),
                      .left_strips = sums.left_strips,
                      .right_strips = strips_of(sums.columns),
                      .depth = shape_.k,
                      .left_stride = strip,
                      .right_stride = strip,
                      .tiles = tiles});
      if (product_.consumer != nullptr) {
        (*product_.consumer)(sums, m + row, n + column);
      } else {
        store_product(sums, target_at(product_, m + row, n + column));
      }
    });
  }

  const KernelContext& context_;
  const MatrixProduct& product_;
  const GemmShape& shape_;
  const StripCode& code_;
  Cut cut_;
  int workers_;  // that multiply
  std::byte* packed_a_ = nullptr;
  std::byte* packed_b_ = nullptr;
};

}  // namespace

void packed_multiply(const KernelContext& context, const MatrixProduct& product,
                     const StripCode& code) {
  if (is_of_panels(product)) return panel_multiply(context, product, code);
  ProductRun(context, product, code).run();
}

std::int64_t packed_block_columns(const GemmShape& shape) { return block_of(shape).columns; }

std::size_t packed_multiply_workspace(const MatrixProduct& product, int workers,
                                      const StripCode& code) {
  if (is_of_panels(product)) return panel_multiply_workspace(product, workers, code);
  const Cut cut(product.shape, code);
  const int fed = fed_workers(workers, cut.blocks(), product.shape.flops());
  return cut.layout.total_bytes() + cut.sums_bytes() * static_cast<std::size_t>(fed);
}

}  // namespace terrace
