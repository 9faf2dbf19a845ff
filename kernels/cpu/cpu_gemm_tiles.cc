#include "kernels/cpu/cpu_gemm_tiles.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

// A tile of 512 x 512 fp32 sums fills half of a 2 MiB second-level cache, and is large enough to
// make oneDNN's packing of the operands worth its time. Fewer tiles than kTilesMin would leave
// workers idle, so smaller products have smaller tiles, but not so small that packing dominates.
constexpr std::int64_t kTileMax = 512;
constexpr std::int64_t kTileMin = 256;
constexpr std::int64_t kTilesMin = 16;
// Tile edges are multiples of a cache line of bf16 and of the registers' tiles.
constexpr std::int64_t kTileUnit = 32;

std::int64_t parts_of(std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; }

// Returns the size of the parts when the extent is divided into equal parts of at most about
// `limit`.
std::int64_t even_part(std::int64_t extent, std::int64_t limit) {
  const std::int64_t part = parts_of(extent, parts_of(extent, limit));
  return std::min(extent, parts_of(part, kTileUnit) * kTileUnit);
}

}  // namespace

GemmTiles::GemmTiles(const GemmShape& whole) : whole_(whole) {
  TERRACE_CHECK(whole.m > 0 && whole.n > 0 && whole.k > 0);
  std::int64_t limit_m = kTileMax;
  std::int64_t limit_n = kTileMax;
  while (parts_of(whole.m, limit_m) * parts_of(whole.n, limit_n) < kTilesMin) {
    const bool can_m = limit_m > kTileMin && whole.m > kTileMin;
    const bool can_n = limit_n > kTileMin && whole.n > kTileMin;
    if (!can_m && !can_n) break;
    if (can_m && (limit_m >= limit_n || !can_n)) {
      limit_m /= 2;
    } else {
      limit_n /= 2;
    }
  }
  tile_rows_ = even_part(whole.m, limit_m);
  tile_columns_ = even_part(whole.n, limit_n);
  row_tiles_ = parts_of(whole.m, tile_rows_);
  column_tiles_ = parts_of(whole.n, tile_columns_);
}

GemmTiles GemmTiles::apart(GemmShape whole) {
  GemmTiles tiles(whole);
  tiles.whole_.c_stride = tiles.tile_columns_;
  return tiles;
}

GemmTile GemmTiles::tile(std::int64_t index) const {
  GemmTile tile;
  tile.row = index % row_tiles_ * tile_rows_;
  tile.column = index / row_tiles_ * tile_columns_;
  tile.rows = std::min(tile_rows_, whole_.m - tile.row);
  tile.columns = std::min(tile_columns_, whole_.n - tile.column);
  return tile;
}

GemmShape GemmTiles::shape_of(const GemmTile& tile) const {
  GemmShape shape = whole_;
  shape.m = tile.rows;
  shape.n = tile.columns;
  return shape;
}

GemmOperands GemmTiles::operands_of(const GemmTile& tile, const GemmOperands& whole) const {
  const auto input_bytes = static_cast<std::int64_t>(size_of(whole_.input));
  GemmOperands operands = whole;
  operands.a += tile.row * (whole_.a_transposed ? 1 : whole_.a_stride) * input_bytes;
  operands.b += tile.column * (whole_.b_transposed ? whole_.b_stride : 1) * input_bytes;
  if (whole_.has_bias) {
    operands.bias += tile.column * static_cast<std::int64_t>(size_of(whole_.bias_dtype));
  }
  return operands;
}

std::size_t GemmTiles::scratch_bytes() const {
  std::size_t most = 0;
  for (const std::int64_t row : {std::int64_t{0}, row_tiles_ - 1}) {
    for (const std::int64_t column : {std::int64_t{0}, column_tiles_ - 1}) {
      most = std::max(most, gemm_scratch_bytes(shape_of(tile(column * row_tiles_ + row))));
    }
  }
  return (most + 63) / 64 * 64;
}

void GemmTiles::run(std::int64_t index, const GemmOperands& whole) const {
  const GemmTile place = tile(index);
  GemmOperands operands = operands_of(place, whole);
  operands.c += (place.row * whole_.c_stride + place.column) *
                static_cast<std::int64_t>(size_of(whole_.output));
  gemm(shape_of(place), operands);
}

void GemmTiles::run_apart(std::int64_t index, const GemmOperands& operands) const {
  TERRACE_CHECK_EQ(whole_.c_stride, tile_columns_);
  const GemmTile place = tile(index);
  gemm(shape_of(place), operands_of(place, operands));
}

}  // namespace terrace
