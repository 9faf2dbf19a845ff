#include "kernels/cpu/matrix_product.h"

#include "base/check.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/cpu_gemm_tiles.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/few_rows_product.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/cpu/product_result.h"
#include "kernels/cpu/vector_tiles.h"

namespace terrace {
namespace {

std::size_t tile_bytes(const GemmTiles& tiles) {
  WorkspaceLayout layout;
  layout.add(static_cast<std::size_t>(tiles.tile_elements()) * sizeof(float));
  return layout.total_bytes();
}

int workers_of(int workers, const GemmTiles& tiles, const GemmShape& shape) {
  return fed_workers(workers, tiles.count(), shape.flops());
}

// Computes each tile at its place in c.
void onednn_in_place(const KernelContext& context, const MatrixProduct& product) {
  const GemmTiles tiles(product.shape);
  const int workers = workers_of(context.workers->threads(), tiles, product.shape);
  context.workers->parallel_for(tiles.count(), workers, [&](std::int64_t index, int worker) {
    tiles.run(index, {.a = product.a,
                      .b = product.b,
                      .c = product.c,
                      .bias = product.bias,
                      .scratch = worker_share(context, 0, workers, worker)});
  });
}

const StripCode& strips_of_code(ProductCode code) {
  switch (code) {
    case ProductCode::kAmx:
      return amx_strips();
    case ProductCode::kPairs:
      return pair_strips();
    default:
      return vector_strips();
  }
}

bool goes_apart(const MatrixProduct& product) {
  return product.gradient.has_value() || product.consumer != nullptr;
}

// Computes each tile in the worker's own memory, from where it is added to the gradient or
// consumed.
void onednn_apart(const KernelContext& context, const MatrixProduct& product) {
  const GemmTiles tiles = GemmTiles::apart(product.shape);
  const std::size_t scratch_offset = tile_bytes(tiles);
  const int workers = workers_of(context.workers->threads(), tiles, product.shape);
  context.workers->parallel_for(tiles.count(), workers, [&](std::int64_t index, int worker) {
    const auto share = worker_share(context, 0, workers, worker);
    tiles.run_apart(index, {.a = product.a,
                            .b = product.b,
                            .c = share.data(),
                            .scratch = share.subspan(scratch_offset)});
    const GemmTile tile = tiles.tile(index);
    const ProductSums sums = {.data = region_at<float>(share, 0, tiles.tile_elements()),
                              .stride = tiles.tile_columns(),
                              .rows = tile.rows,
                              .columns = tile.columns};
    if (product.consumer != nullptr) return (*product.consumer)(sums, tile.row, tile.column);
    const std::int64_t stride = product.shape.c_stride;
    store_product(sums, {.data = product.c + (tile.row * stride + tile.column) *
                                                 static_cast<std::int64_t>(sizeof(float)),
                         .stride = stride,
                         .gradient = product.gradient});
  });
}

}  // namespace

std::int64_t product_block_columns(const GemmShape& shape, ProductCode code) {
  return code == ProductCode::kOneDnn ? GemmTiles(shape).tile_columns()
                                      : packed_block_columns(shape);
}

ProductCode product_code(DType input) {
  if (input == DType::kBF16) {
    if (amx_usable()) return ProductCode::kAmx;
    if (pair_products_usable()) return ProductCode::kPairs;
  }
  return gemm_takes(input) ? ProductCode::kOneDnn : ProductCode::kVectors;
}

ProductCode product_code(const MatrixProduct& product) {
  return is_of_few_rows(product) ? ProductCode::kFewRows : product_code(product.shape.input);
}

const StripCode& strip_code(DType input) { return strips_of_code(product_code(input)); }

void multiply(const KernelContext& context, const MatrixProduct& product, ProductCode code) {
  TERRACE_CHECK(!product.gradient.has_value() ||
                (product.shape.output == DType::kF32 && !product.shape.has_bias));
  if (code == ProductCode::kFewRows) return few_rows_multiply(context, product);
  if (code != ProductCode::kOneDnn) return packed_multiply(context, product, strips_of_code(code));
  if (goes_apart(product)) return onednn_apart(context, product);
  onednn_in_place(context, product);
}

std::size_t multiply_workspace(const MatrixProduct& product, int workers, ProductCode code) {
  if (code == ProductCode::kFewRows) return 0;
  if (code != ProductCode::kOneDnn) {
    return packed_multiply_workspace(product, workers, strips_of_code(code));
  }
  const bool apart = goes_apart(product);
  const GemmTiles tiles = apart ? GemmTiles::apart(product.shape) : GemmTiles(product.shape);
  const std::size_t of_worker = (apart ? tile_bytes(tiles) : 0) + tiles.scratch_bytes();
  return of_worker * static_cast<std::size_t>(workers_of(workers, tiles, product.shape));
}

}  // namespace terrace
