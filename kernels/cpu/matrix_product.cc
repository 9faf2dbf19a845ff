#include "kernels/cpu/matrix_product.h"

#include "base/check.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/cpu_gemm_tiles.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/product_result.h"

namespace terrace {
namespace {

std::size_t tile_bytes(const GemmTiles& tiles) {
  WorkspaceLayout layout;
  layout.add(static_cast<std::size_t>(tiles.tile_elements()) * sizeof(float));
  return layout.total_bytes();
}

// Each tile at its place in c.
void onednn_in_place(const KernelContext& context, const MatrixProduct& product) {
  const GemmTiles tiles(product.shape);
  context.workers->parallel_for(tiles.count(), [&](std::int64_t index, int worker) {
    tiles.run(index, {.a = product.a,
                      .b = product.b,
                      .c = product.c,
                      .bias = product.bias,
                      .scratch = worker_share(context, 0, worker)});
  });
}

// Each tile in the worker's own memory, from where it joins the gradient.
void onednn_gradient(const KernelContext& context, const MatrixProduct& product) {
  const GemmTiles tiles = GemmTiles::apart(product.shape);
  const std::size_t scratch_offset = tile_bytes(tiles);
  context.workers->parallel_for(tiles.count(), [&](std::int64_t index, int worker) {
    const auto share = worker_share(context, 0, worker);
    tiles.run_apart(index, {.a = product.a,
                            .b = product.b,
                            .c = share.data(),
                            .scratch = share.subspan(scratch_offset)});
    const GemmTile tile = tiles.tile(index);
    const std::int64_t stride = product.shape.c_stride;
    store_product({.data = region_at<float>(share, 0, tiles.tile_elements()),
                   .stride = tiles.tile_columns(),
                   .rows = tile.rows,
                   .columns = tile.columns},
                  {.data = product.c + (tile.row * stride + tile.column) *
                                           static_cast<std::int64_t>(sizeof(float)),
                   .stride = stride,
                   .gradient = product.gradient});
  });
}

}  // namespace

ProductCode product_code(DType input) {
  return input == DType::kBF16 && amx_usable() ? ProductCode::kAmx : ProductCode::kOneDnn;
}

void multiply(const KernelContext& context, const MatrixProduct& product, ProductCode code) {
  TERRACE_CHECK(!product.gradient.has_value() ||
                (product.shape.output == DType::kF32 && !product.shape.has_bias));
  if (code == ProductCode::kAmx) return amx_multiply(context, product);
  if (product.gradient.has_value()) return onednn_gradient(context, product);
  onednn_in_place(context, product);
}

std::size_t multiply_workspace(const MatrixProduct& product, int workers, ProductCode code) {
  if (code == ProductCode::kAmx) return amx_multiply_workspace(product.shape, workers);
  if (!product.gradient.has_value()) {
    return GemmTiles(product.shape).scratch_bytes() * static_cast<std::size_t>(workers);
  }
  const GemmTiles tiles = GemmTiles::apart(product.shape);
  return (tile_bytes(tiles) + tiles.scratch_bytes()) * static_cast<std::size_t>(workers);
}

}  // namespace terrace
