#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/packed_strips.h"
#include "kernels/cpu/product_result.h"
#include "memory/host/worker_arena.h"

// The two operands and the result of a matrix product, in the form that our own product code uses.
namespace terrace {

// The depth that is packed at once; it is whole steps.
inline constexpr std::int64_t kPackDepth = 256;
static_assert(kPackDepth % kStrip == 0);

inline std::int64_t round_to_strips(std::int64_t extent) { return strips_of(extent) * kStrip; }

// Returns the size of the parts when `extent` is divided into equal parts of at most `limit`, each
// of whole strips.
std::int64_t even_part(std::int64_t extent, std::int64_t limit);

// A matrix whose rows (left) or columns (right) are packed in strips.
struct Operand {
  const std::byte* data = nullptr;
  DType type = DType::kBF16;
  std::int64_t stride = 0;             // elements from one stored row to the next
  std::int64_t extent = 0, depth = 0;  // rows or columns, and the elements of each
  bool depth_contiguous = false;       // a stored row runs along the depth

  // Returns the part of the strip of row or column `first` that begins at depth `begin` and is at
  // most kPackDepth deep, to be packed at `target`.
  PackStrip strip(std::int64_t first, std::int64_t begin, std::byte* target) const;
};

Operand left_operand(const MatrixProduct& product);
Operand right_operand(const MatrixProduct& product);

// Rows or columns [first, first + extent) of an operand, to be packed at `target`, one whole strip
// after the other.
struct OperandPart {
  Operand operand;
  std::int64_t first = 0, extent = 0;
  std::byte* target = nullptr;
};

// Packs the part with all workers. `pack_strip` is one of the code's two functions.
void pack_part(WorkerArena& workers, const StripCode& code, const OperandPart& part,
               void (*pack_strip)(const PackStrip&));

// Returns where the sums of the block at (row, column) go.
ProductTarget target_at(const MatrixProduct& product, std::int64_t row, std::int64_t column);

}  // namespace terrace
