#pragma once

#include <cstddef>
#include <cstdint>

#include "base/function_ref.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/logit_rows.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/kernel_table.h"

// The products of the head in chunks of rows whose logits are in the workspace at once; the caller
// decides how the logits are used. Letters: R rows, V vocabulary, C width.
namespace terrace {

struct HeadShape {
  explicit HeadShape(const HeadLoss& op);

  std::int64_t chunks() const { return (R + chunk - 1) / chunk; }
  std::int64_t rows_of(std::int64_t index) const {
    return chunk < R - index * chunk ? chunk : R - index * chunk;
  }

  // Returns which code multiplies. Each chunk reads the whole weight, which our own code by pairs
  // would pack again for every chunk; oneDNN packs only the part that a block is about to multiply.
  ProductCode code(const MatrixProduct& product) const;
  MatrixProduct logits(std::int64_t rows) const;   // [rows,V] = h weight^T
  MatrixProduct dh(std::int64_t rows) const;       // [rows,C] = dlogits weight
  MatrixProduct dweight(std::int64_t rows) const;  // the chunk's part of [V,C] = dlogits^T h

  // Returns the stride of dlogits. Rows of logits are `stride` elements apart; their gradients are
  // written into the same rows from the front, in elements of the compute type.
  std::int64_t dlogits_stride() const {
    return stride * static_cast<std::int64_t>(sizeof(float) / size_of(dtype));
  }

  std::int64_t V, C, R, chunk, stride;
  DType dtype;
};

class HeadChunks {
 public:
  // Uses the shapes, h, weight, dh, dweight and mode of `op`. Borrows both arguments.
  HeadChunks(const KernelContext& context, const HeadLoss& op);
  static std::size_t workspace_bytes(const HeadLoss& op, int workers);

  const HeadShape& shape() const { return shape_; }
  double* losses() const;  // [R], for the caller
  // Returns the map from products h . weight to logits.
  const LogitMap& map() const { return map_; }
  // Computes the chunk of `rows` rows whose first row is `first`. Logits have gone through map().
  void compute_logits(std::int64_t first, std::int64_t rows) const;
  void compute_input_gradient(std::int64_t first, std::int64_t rows) const;
  // Stores chunk 0 as 0 + g and adds the others to it. A single chunk is added to dweight at once.
  void add_weight_gradient(std::int64_t first, std::int64_t rows) const;
  // Called after the last chunk: if several chunks have to be added to a gradient, adds their sum
  // now.
  void join_weight_gradient() const;

  // These functions work on a row of the chunk: on its logits, or on the gradients that replace
  // them.
  float* logits_row(std::int64_t row) const;
  void clear_dlogits(std::int64_t row) const;
  void set_dlogits(std::int64_t row, float factor) const;  // factor * logits, which are gone then
  // The same for a soft cap: factor * exp(logit - max) * the logit's slope. The logits are gone
  // then.
  void set_capped_dlogits(std::int64_t row, float max, float factor) const;
  void set_dlogit(std::int64_t row, std::int64_t column, float value) const;

 private:
  // Offsets in the workspace; the products' own workspace follows.
  struct Workspace {
    Workspace(const HeadLoss& op, const HeadShape& shape);
    WorkspaceLayout layout;
    std::size_t losses = 0, logits = 0, dweight = 0;
  };

  static bool sums_apart(const HeadLoss& op, const HeadShape& shape);
  std::byte* row_of(const TensorView& rows, std::int64_t row) const;
  std::byte* dlogits_row(std::int64_t row) const;

  const KernelContext& context_;
  const HeadLoss& op_;
  // Calls round(first, count, target) for pieces of a row; each piece is replaced in place by its
  // gradients.
  void replace_row(
      std::int64_t row,
      FunctionRef<void(std::int64_t first, std::int64_t count, void* target)> round) const;

  HeadShape shape_;
  LogitMap map_;
  Workspace at_;
  KernelContext inner_;  // with the workspace of the products
};

}  // namespace terrace
