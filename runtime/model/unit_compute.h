#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/block_tensors.h"
#include "runtime/step/step_model.h"

// What the units of a model compute, as straight lists of kernel calls. Nothing here moves,
// allocates or waits: all memory is given.
//
// Letters: B sequences in a micro-batch, T positions, R = B*T rows, C width, D head width, H query
// heads, G key-value heads, I intermediate width, V vocabulary.
namespace terrace {

// Where a compute op finds its tensors. Which are set depends on the op.
struct UnitMemory {
  std::byte* parameters = nullptr;       // the unit's flat sequence, compute type
  std::byte* tied_parameters = nullptr;  // the embedding's
  std::byte* constants = nullptr;        // the rotary table
  std::byte* tokens = nullptr;           // i32: R tokens, then R targets
  std::byte* hidden = nullptr;           // [R,C] in
  std::byte* hidden_out = nullptr;       // [R,C] out; null: not wanted
  std::span<std::byte> saved;
  std::byte* hidden_gradient = nullptr;      // [R,C] of the output, in
  std::byte* hidden_gradient_out = nullptr;  // [R,C] of the input, out
  std::byte* gradient = nullptr;             // the unit's flat sequence, fp32
  GradientMode gradient_mode = GradientMode::kAssign;
  std::byte* tied_gradient = nullptr;
  GradientMode tied_gradient_mode = GradientMode::kAssign;
  double* loss_sum = nullptr;
  float gradient_scale = 1.0F;
  TensorView logits;  // [R,V] fp32, for sampling; empty otherwise
};

class UnitCompute {
 public:
  // `layout` is parameter_layout(config). Borrows the table.
  UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout, DType compute_type,
              const BatchShape& batch, const KernelTable& kernels);

  void embedding_forward(const KernelContext& context, const UnitMemory& memory) const;
  void block_forward(const KernelContext& context, std::int64_t unit,
                     const UnitMemory& memory) const;
  void block_backward(const KernelContext& context, std::int64_t unit,
                      const UnitMemory& memory) const;
  // Norm, head and loss; the backward too where memory.hidden_gradient_out is set.
  void head(const KernelContext& context, const UnitMemory& memory) const;
  // Of all micro-batches: memory.tokens points to the first; one [R,C] gradient each.
  void embedding_backward(const KernelContext& context, const UnitMemory& memory,
                          std::span<std::byte* const> hidden_gradients) const;

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

  Scratch carve_scratch(KernelContext& context) const;
  std::size_t workspace_bytes(std::int32_t micro_batches, int workers) const;
  std::size_t kernel_workspace_bytes(std::int32_t micro_batches, int workers) const;
  TensorView rows(std::byte* data, std::int64_t columns) const;
  TensorView tokens(std::byte* data) const;
  TensorView targets(std::byte* data) const;
  void clear_padding(const KernelContext& context, std::int64_t unit, std::byte* gradient) const;
  void norm_forward(const KernelContext& context, const TensorView& x, const TensorView& weight,
                    const TensorView& bias, const TensorView& y, const TensorView& mean,
                    const TensorView& rstd) const;
  void norm_backward(const KernelContext& context, const Norm& norm) const;
  void rotate(const KernelContext& context, const TensorView& qkv, std::byte* table,
              bool inverse) const;
  void attention_forward(const KernelContext& context, const BlockTensors& weights,
                         const SavedTensors& saved, const UnitMemory& memory) const;
  void linear_backward(const KernelContext& context, const MatmulBackwardInput& input,
                       const MatmulBackwardWeight& weight) const;
  void mlp_backward(const KernelContext& context, const BlockTensors& weights,
                    const BlockTensors& gradients, const SavedTensors& saved,
                    const Scratch& scratch, const UnitMemory& memory) const;
  void attention_backward(const KernelContext& context, const BlockTensors& weights,
                          const BlockTensors& gradients, const SavedTensors& saved,
                          const Scratch& scratch, const UnitMemory& memory) const;
  AttentionShape attention_shape() const;
  float attention_scale() const;

  ModelConfig config_;
  std::vector<UnitLayout> layout_;
  DType type_;
  BatchShape batch_;
  const KernelTable& kernels_;
};

}  // namespace terrace
