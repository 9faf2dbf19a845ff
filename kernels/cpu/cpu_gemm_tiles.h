#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/onednn_gemm.h"

// A matrix product cut into tiles of c. The cut depends on m and n alone and k is never cut, so
// neither the worker that computes a tile nor the number of workers can change bits.
namespace terrace {

struct GemmTile {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
};

class GemmTiles {
 public:
  explicit GemmTiles(const GemmShape& whole);

  std::int64_t count() const { return row_tiles_ * column_tiles_; }
  // Tiles that follow each other share the columns of b.
  GemmTile tile(std::int64_t index) const;
  std::int64_t tile_elements() const { return tile_rows_ * tile_columns_; }
  std::int64_t tile_columns() const { return tile_columns_; }

  // Returns the scratch memory that one worker needs for any tile, a multiple of 64. It asks
  // oneDNN, so it is meant for sizing a workspace, not for every call.
  std::size_t scratch_bytes() const;
  // Writes the tile at its place in c. `whole` has the operands of the whole product.
  void run(std::int64_t index, const GemmOperands& whole) const;
  // Does the same for a product whose result goes to a separate tile with rows of tile_columns():
  // operands.c is that tile. The shape's c_stride must be tile_columns().
  void run_apart(std::int64_t index, const GemmOperands& operands) const;

  // Returns the tiles of the shape with c_stride set for run_apart.
  static GemmTiles apart(GemmShape whole);

 private:
  GemmShape shape_of(const GemmTile& tile) const;
  GemmOperands operands_of(const GemmTile& tile, const GemmOperands& whole) const;

  GemmShape whole_;
  std::int64_t tile_rows_ = 0, tile_columns_ = 0, row_tiles_ = 0, column_tiles_ = 0;
};

}  // namespace terrace
