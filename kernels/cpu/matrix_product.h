#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/function_ref.h"
#include "kernels/cpu/onednn_gemm.h"
#include "kernels/cpu/packed_strips.h"
#include "kernels/cpu/product_result.h"
#include "kernels/kernel_context.h"

// A large matrix product, shared among the workers. It is cut into blocks of c that depend on the
// shape alone, and the sum of an element runs over k in an order that depends on the shape alone,
// so neither the worker that computes a block nor the number of workers can change bits.
namespace terrace {

// Which code multiplies. bf16 uses our own code: in tile registers where the processor has them
// (kAmx, amx_tiles.h), else by pairs in vector registers where the processor can (kPairs,
// pair_products.h). Otherwise oneDNN multiplies. kVectors is our own code in vector registers
// (vector_tiles.h). It is for blocks on one thread, where oneDNN has too much to set up, and for
// bf16 where oneDNN has no code for it (most processors without AVX-512); for whole products oneDNN
// is faster. kFewRows (few_rows_product.h) is for products of few rows with a weight. Another code
// may give other bits.
enum class ProductCode : std::uint8_t { kOneDnn, kAmx, kPairs, kVectors, kFewRows };
// Returns the code for products of many rows.
ProductCode product_code(DType input);

// Returns the code for products of blocks on one thread: as above, but kVectors where oneDNN would
// multiply.
const StripCode& strip_code(DType input);

struct MatrixProduct {
  // With has_bias the bias is added to the fp32 sums. `accumulate` is not used.
  GemmShape shape;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* c = nullptr;
  const std::byte* bias = nullptr;
  // If set, c is a gradient in fp32, and the sums are added to it or assigned; there is no bias.
  std::optional<GradientMode> gradient = std::nullopt;
  // If set, c, bias and gradient are not used, and each block's sums are passed to it, with the
  // block's first row and column. It may change the sums. The workers call it, for different blocks
  // at the same time.
  const FunctionRef<void(const ProductSums&, std::int64_t row, std::int64_t column)>* consumer =
      nullptr;
};

// Returns which code multiplies this product.
ProductCode product_code(const MatrixProduct& product);

// Returns the columns of every block except the last in a row of blocks. Not for kFewRows, which
// has no blocks.
std::int64_t product_block_columns(const GemmShape& shape, ProductCode code);

void multiply(const KernelContext& context, const MatrixProduct& product, ProductCode code);
// Returns the bytes of workspace, a multiple of 64. They depend on the shape and on which of
// gradient and consumer are set.
std::size_t multiply_workspace(const MatrixProduct& product, int workers, ProductCode code);

inline void multiply(const KernelContext& context, const MatrixProduct& product) {
  multiply(context, product, product_code(product));
}
inline std::size_t multiply_workspace(const MatrixProduct& product, int workers) {
  return multiply_workspace(product, workers, product_code(product));
}

}  // namespace terrace
