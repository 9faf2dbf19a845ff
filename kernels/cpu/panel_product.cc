#include "kernels/cpu/panel_product.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/packed_operand.h"
#include "kernels/cpu/parallel_blocks.h"
#include "kernels/cpu/product_result.h"

namespace terrace {
namespace {

// The most rows of a product that is computed in panels. With more rows, the sums leave no room for
// the panel in a second-level cache, and packing pays because packed elements are reused often.
constexpr std::int64_t kRowsMax = 512;
// Columns of a task: their sums and their panel must stay in the cache, and there must be enough
// tasks to keep the workers busy.
constexpr std::int64_t kColumnsMax = 192;
constexpr std::int64_t kColumnsMin = 96;
constexpr std::int64_t kTasksMin = 16;

std::int64_t columns_of(const GemmShape& shape) {
  const bool is_wide = blocks_of(shape.n, kColumnsMax) >= kTasksMin;
  return even_part(shape.n, is_wide ? kColumnsMax : kColumnsMin);
}

std::int64_t tasks_of(const GemmShape& shape) { return blocks_of(shape.n, columns_of(shape)); }

// The memory that a product needs: the packed rows, and for each worker the sums and the panel of a
// task.
struct PanelLayout {
  PanelLayout(const GemmShape& shape, const StripCode& code) {
    const std::int64_t columns = columns_of(shape);
    const std::int64_t left = strips_of(shape.m) * strip_elements(shape.k);
    const std::int64_t right = strips_of(columns) * strip_elements(kPackDepth);
    shared.add(static_cast<std::size_t>(code.bytes(left)));
    own.add(static_cast<std::size_t>(round_to_strips(shape.m) * columns) * sizeof(float));
    panel = own.add(static_cast<std::size_t>(code.bytes(right)));
  }
  WorkspaceLayout shared;  // the packed rows begin at 0
  WorkspaceLayout own;     // a worker's: the sums begin at 0
  std::size_t panel = 0;
};

class PanelRun {
 public:
  PanelRun(const KernelContext& context, const MatrixProduct& product, const StripCode& code)
      : context_(context),
        product_(product),
        shape_(product.shape),
        code_(code),
        layout_(product.shape, code),
        right_(right_operand(product)) {
    TERRACE_CHECK_LE(layout_.shared.total_bytes(), context.workspace.size());
  }

  void run() {
    WorkerArena& workers = *context_.workers;
    pack_part(workers, code_, {left_operand(product_), 0, shape_.m, context_.workspace.data()},
              code_.pack_left);
    const std::int64_t tasks = tasks_of(shape_);
    const int fed = fed_workers(workers.threads(), tasks, shape_.flops());
    workers.parallel_for(tasks, fed, [&](std::int64_t index, int worker) {
      const std::int64_t column = index * columns_of(shape_);
      multiply_columns(column, worker_share(context_, layout_.shared.total_bytes(), fed, worker));
    });
  }

 private:
  void multiply_columns(std::int64_t column, std::span<std::byte> own) {
    ProductSums sums;
    sums.rows = shape_.m;
    sums.columns = std::min(columns_of(shape_), shape_.n - column);
    sums.left_strips = strips_of(shape_.m);
    sums.data = region_at<float>(own, 0, round_to_strips(shape_.m) * columns_of(shape_));
    for (std::int64_t depth = 0; depth < shape_.k; depth += kPackDepth) {
      multiply_depth(column, depth, sums, own.data() + layout_.panel);
    }
    store_product(sums, target_at(product_, 0, column));
  }

  void multiply_depth(std::int64_t column, std::int64_t depth, const ProductSums& sums,
                      std::byte* panel) {
    const std::int64_t strips = strips_of(sums.columns);
    const std::int64_t stride = strip_elements(kPackDepth);
    for (std::int64_t s = 0; s < strips; ++s) {
      code_.pack_right(right_.strip(column + s * kStrip, depth, panel + code_.bytes(s * stride)));
    }
    code_.multiply({.left = context_.workspace.data() + code_.bytes(depth * kStrip),
                    .right = panel,
                    .left_strips = sums.left_strips,
                    .right_strips = strips,
                    .depth = std::min(kPackDepth, shape_.k - depth),
                    .left_stride = strip_elements(shape_.k),
                    .right_stride = stride,
                    .accumulate = depth != 0,
                    .tiles = sums.data});
  }

  const KernelContext& context_;
  const MatrixProduct& product_;
  const GemmShape& shape_;
  const StripCode& code_;
  PanelLayout layout_;
  Operand right_;
};

}  // namespace

bool is_of_panels(const MatrixProduct& product) {
  const GemmShape& shape = product.shape;
  return product.consumer == nullptr && shape.m <= kRowsMax && tasks_of(shape) >= kTasksMin;
}

void panel_multiply(const KernelContext& context, const MatrixProduct& product,
                    const StripCode& code) {
  PanelRun(context, product, code).run();
}

std::size_t panel_multiply_workspace(const MatrixProduct& product, int workers,
                                     const StripCode& code) {
  const PanelLayout layout(product.shape, code);
  const int fed = fed_workers(workers, tasks_of(product.shape), product.shape.flops());
  return layout.shared.total_bytes() + layout.own.total_bytes() * static_cast<std::size_t>(fed);
}

}  // namespace terrace
