#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/block_tensors.h"
#include "runtime/model/tensor_carver.h"
#include "runtime/model/unit_phase.h"
#include "runtime/step/step_model.h"

// What the units of a model compute, as straight lists of kernel calls. Nothing here moves,
// allocates or waits: all memory is given.
//
// Letters: B sequences in a micro-batch, T positions, R = B*T rows, C width, D head width, H query
// heads, G key-value heads, I intermediate width, V vocabulary. Of a tensor-parallel rank H, G, I
// and V are its part's; n are its rows of what is not shared out: R, or R/N with sequence
// parallelism over N ranks.
namespace terrace {

// Where a compute op finds its tensors. Which are set depends on the op.
struct UnitMemory {
  std::byte* parameters = nullptr;       // the unit's flat sequence, compute type
  std::byte* tied_parameters = nullptr;  // the embedding's
  std::byte* constants = nullptr;        // the rotary table
  std::byte* tokens = nullptr;           // i32: R tokens, then R targets
  std::byte* hidden = nullptr;           // [n,C] in
  std::byte* hidden_out = nullptr;       // [n,C] out; null: not wanted
  std::span<std::byte> saved;
  std::byte* hidden_gradient = nullptr;      // [n,C] of the output, in; all rows for a product
  std::byte* hidden_gradient_out = nullptr;  // [n,C] of the input, out
  std::byte* gradient = nullptr;             // the unit's flat sequence, fp32
  GradientMode gradient_mode = GradientMode::kAssign;
  std::byte* tied_gradient = nullptr;
  GradientMode tied_gradient_mode = GradientMode::kAssign;
  double* loss_sum = nullptr;
  float gradient_scale = 1.0F;
  TensorView logits;  // [R,V] fp32, for sampling; empty otherwise
  // Between the phases of a shared unit:
  std::byte* gathered = nullptr;  // [R,C] all ranks' rows of what a norm gave; null: they are own
  std::byte* partial = nullptr;   // [R,C] this rank's share of a sum over the ranks, out
  std::byte* reduced = nullptr;   // [n,C] the sum, in
  std::byte* row_sums = nullptr;  // [R,3] fp32, out
  std::byte* all_row_sums = nullptr;  // [ranks,R,3], in
};

class UnitCompute {
 public:
  // `layout` is parameter_layout(config), or that of the part that `split` says. Borrows the table.
  UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout, DType compute_type,
              const BatchShape& batch, const KernelTable& kernels,
              const TensorSplit& split = TensorSplit());

  void embedding_forward(const KernelContext& context, const UnitMemory& memory) const;
  void block_forward(const KernelContext& context, std::int64_t unit,
                     const UnitMemory& memory) const;
  void block_backward(const KernelContext& context, std::int64_t unit,
                      const UnitMemory& memory) const;
  // Norm, head and loss; the backward too where memory.hidden_gradient_out is set.
  void head(const KernelContext& context, const UnitMemory& memory) const;
  // The phases of a unit that tensor-parallel ranks share.
  void embedding_phase(const KernelContext& context, UnitPhase phase,
                       const UnitMemory& memory) const;
  void forward_phase(const KernelContext& context, std::int64_t unit, UnitPhase phase,
                     const UnitMemory& memory) const;
  void backward_phase(const KernelContext& context, std::int64_t unit, UnitPhase phase,
                      const UnitMemory& memory) const;
  void head_phase(const KernelContext& context, UnitPhase phase, const UnitMemory& memory) const;

  // Of all micro-batches: memory.tokens points to the first; one [R,C] gradient each. `views` is
  // room for two a micro-batch, of the host: nothing is allocated in a step.
  void embedding_backward(const KernelContext& context, const UnitMemory& memory,
                          std::span<std::byte* const> hidden_gradients,
                          std::span<TensorView> views) const;

  // Makes what kernels of these shapes need (KernelTable::prepare_attention), so that no step has
  // to. The context needs no workspace.
  void prepare(const KernelContext& context) const;

  // Sizes and costs for the passes. `workers` of the compute lane decide the workspace.
  StepModel step_model(std::int32_t micro_batches, int workers) const;

  // Bytes of tokens and targets of one micro-batch.
  std::size_t tokens_bytes() const;
  // The rotary table, empty where there is none: [T,D] in fp32.
  std::vector<float> constants() const;
  const BatchShape& batch() const { return batch_; }
  const std::vector<UnitLayout>& layout() const { return layout_; }
  DType compute_type() const { return type_; }

 private:
  // Temporaries of a block's backward, sharing two pieces of memory in turn.
  struct Scratch {
    TensorView wide_columns(std::int64_t columns) const;
    TensorView narrow_columns(std::int64_t columns) const;
    TensorView wide, narrow, middle_gradient;
  };
  struct Norm {
    TensorView dy, x, weight, mean, rstd, dresidual, dx, dweight, dbias;
    GradientMode mode;
  };

  // What a shared head keeps between its phases.
  struct HeadSaved {
    TensorView normed, mean, rstd;  // [n,C], [n], [n]
  };

  Scratch carve_scratch(KernelContext& context) const;
  HeadSaved head_saved(TensorCarver& carver) const;
  // The rank's part of the vocabulary with its padding, the same on all ranks.
  std::int64_t vocabulary_part() const { return layout_.front().tensors.front().rows; }
  std::size_t workspace_bytes(std::int32_t micro_batches, int workers) const;
  std::size_t kernel_workspace_bytes(std::int32_t micro_batches, int workers) const;
  std::size_t head_workspace_bytes(std::int32_t micro_batches, int workers) const;
  std::size_t head_part_workspace_bytes(std::int32_t micro_batches, int workers) const;
  TensorSharing tensor_sharing() const;
  TensorView rows(std::byte* data, std::int64_t columns) const;
  TensorView own_rows(std::byte* data) const;  // [n,C]
  TensorView all_rows(std::byte* gathered, const TensorView& own) const;
  BlockTensors block_weights(std::int64_t unit, const UnitMemory& memory) const;
  HeadTensors head_weights(const UnitMemory& memory) const;
  HeadTensors head_gradients(const UnitMemory& memory) const;
  TensorView tokens(std::byte* data) const;
  TensorView targets(std::byte* data) const;
  void clear_padding(const KernelContext& context, std::int64_t unit, std::byte* gradient) const;
  void norm_forward(const KernelContext& context, const TensorView& x, const TensorView& weight,
                    const TensorView& bias, const TensorView& y, const TensorView& mean,
                    const TensorView& rstd) const;
  void norm_backward(const KernelContext& context, const Norm& norm) const;
  void rotate(const KernelContext& context, const TensorView& qkv, std::byte* table,
              bool inverse) const;
  // From all rows of a norm's result to the product that joins the residual stream. What the
  // second writes may be empty: not wanted.
  void attend(const KernelContext& context, const BlockTensors& weights, const SavedTensors& saved,
              const TensorView& normed, std::byte* table, const TensorView& out) const;
  void feed_forward(const KernelContext& context, const BlockTensors& weights,
                    const SavedTensors& saved, const TensorView& normed,
                    const TensorView& out) const;
  void linear_backward(const KernelContext& context, const MatmulBackwardInput& input,
                       const MatmulBackwardWeight& weight) const;
  // The way back: from the gradient of what joins the residual stream to that of the norm's result.
  struct Products {
    BlockTensors weights, gradients;
    SavedTensors saved;
    GradientMode mode;
    std::byte* table;
  };
  void feed_forward_backward(const KernelContext& context, const Products& products,
                             const Scratch& scratch, const TensorView& normed,
                             const TensorView& dout, const TensorView& dnormed) const;
  void attend_backward(const KernelContext& context, const Products& products,
                       const Scratch& scratch, const TensorView& normed, const TensorView& dmiddle,
                       const TensorView& dnormed) const;
  Products products_of(std::int64_t unit, const UnitMemory& memory) const;
  AttentionShape attention_shape() const;
  float attention_scale() const;
  // Of a micro-batch, with views of no memory: what has shapes, and nothing to read.
  struct AttentionOps {
    AttentionForward forward;
    AttentionBackward backward;
  };
  SavedTensors saved_shapes() const;
  AttentionOps attention_ops() const;

  ModelConfig config_;  // of this rank's part
  std::vector<UnitLayout> layout_;
  DType type_;
  BatchShape batch_;
  TensorSplit split_;
  std::int64_t vocabulary_ = 0;   // the model's
  std::int64_t first_token_ = 0;  // of the part
  const KernelTable& kernels_;
};

}  // namespace terrace
