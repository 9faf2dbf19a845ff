#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

// The ops of reference_kernels(), grouped by concept: one source file for each group.
namespace terrace::reference {

void matmul_forward(const KernelContext&, const MatmulForward&);
void matmul_backward_input(const KernelContext&, const MatmulBackwardInput&);
void matmul_backward_weight(const KernelContext&, const MatmulBackwardWeight&);

void rms_norm_forward(const KernelContext&, const RmsNormForward&);
void rms_norm_backward(const KernelContext&, const RmsNormBackward&);
void row_squares(const KernelContext&, const RowSquares&);
void norm_along(const KernelContext&, const NormAlong&);
void layer_norm_forward(const KernelContext&, const LayerNormForward&);
void layer_norm_backward(const KernelContext&, const LayerNormBackward&);

void rope(const KernelContext&, const Rope&);
void attention_forward(const KernelContext&, const AttentionForward&);
void attention_backward(const KernelContext&, const AttentionBackward&);
void attention_sinks_backward(const KernelContext&, const AttentionSinksBackward&);
std::size_t attention_forward_workspace(const AttentionForward&, int workers);
std::size_t attention_backward_workspace(const AttentionBackward&, int workers);

void glu_forward(const KernelContext&, const GluForward&);
void glu_backward(const KernelContext&, const GluBackward&);
void gelu_forward(const KernelContext&, const GeluForward&);
void gelu_backward(const KernelContext&, const GeluBackward&);

void add(const KernelContext&, const Add&);
void scale(const KernelContext&, const Scale&);
void scale_rows(const KernelContext&, const ScaleRows&);
void dropout(const KernelContext&, const Dropout&);
void magnitude_factors(const KernelContext&, const MagnitudeFactors&);
void scale_columns(const KernelContext&, const ScaleColumns&);
void accumulate_gradient(const KernelContext&, const AccumulateGradient&);
void round_gradient(const KernelContext&, const RoundGradient&);
void encode_wire(const KernelContext&, const EncodeWire&);
void decode_wire(const KernelContext&, const DecodeWire&);
void sum_wire(const KernelContext&, const SumWire&);
void fill_zero(const KernelContext&, const FillZero&);
void cast_parameters(const KernelContext&, const CastParameters&);
void dequantize(const KernelContext&, const Dequantize&);
void norm_partials(const KernelContext&, const NormPartials&);

void embedding_forward(const KernelContext&, const EmbeddingForward&);
void embedding_backward(const KernelContext&, const EmbeddingBackward&);
void add_positions(const KernelContext&, const AddPositions&);

void head_loss(const KernelContext&, const HeadLoss&);
std::size_t head_loss_workspace(const HeadLoss&, int workers);
void head_sums(const KernelContext&, const HeadSums&);
void head_part_loss(const KernelContext&, const HeadPartLoss&);
std::size_t head_sums_workspace(const HeadSums&, int workers);
std::size_t head_part_loss_workspace(const HeadPartLoss&, int workers);

void choose_experts(const KernelContext&, const ChooseExperts&);
void choose_experts_backward(const KernelContext&, const ChooseExpertsBackward&);
void router_sums(const KernelContext&, const RouterSums&);
void router_slopes(const KernelContext&, const RouterSlopes&);
void sort_slots(const KernelContext&, const SortSlots&);
void expert_forward(const KernelContext&, const ExpertForward&);
void expert_backward_input(const KernelContext&, const ExpertBackwardInput&);
void expert_backward_weight(const KernelContext&, const ExpertBackwardWeight&);
void add_expert_bias(const KernelContext&, const AddExpertBias&);
void expert_bias_gradient(const KernelContext&, const ExpertBiasGradient&);
void add_bias_share(const KernelContext&, const AddBiasShare&);
void sum_expert_rows(const KernelContext&, const SumExpertRows&);
void weigh_expert_rows(const KernelContext&, const WeighExpertRows&);
void gate_rows(const KernelContext&, const GateRows&);
void gate_rows_backward(const KernelContext&, const GateRowsBackward&);

}  // namespace terrace::reference
