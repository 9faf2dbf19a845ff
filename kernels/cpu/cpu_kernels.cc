#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/attention_sinks.h"
#include "kernels/cpu/cpu_activation.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_dropout.h"
#include "kernels/cpu/cpu_elementwise.h"
#include "kernels/cpu/cpu_embedding.h"
#include "kernels/cpu/cpu_expert_biases.h"
#include "kernels/cpu/cpu_expert_products.h"
#include "kernels/cpu/cpu_experts.h"
#include "kernels/cpu/cpu_head_loss.h"
#include "kernels/cpu/cpu_head_part.h"
#include "kernels/cpu/cpu_magnitudes.h"
#include "kernels/cpu/cpu_matmul.h"
#include "kernels/cpu/cpu_norm.h"
#include "kernels/cpu/cpu_norm_partials.h"
#include "kernels/cpu/cpu_quantized.h"
#include "kernels/cpu/cpu_rope.h"
#include "kernels/cpu/cpu_router.h"
#include "kernels/cpu/cpu_wire.h"

namespace terrace {
namespace {

constexpr KernelTable kCpuKernels = {
    .name = "cpu",
    .matmul_forward = cpu_matmul_forward,
    .matmul_backward_input = cpu_matmul_backward_input,
    .matmul_backward_weight = cpu_matmul_backward_weight,
    .rms_norm_forward = cpu_rms_norm_forward,
    .rms_norm_backward = cpu_rms_norm_backward,
    .row_squares = cpu_row_squares,
    .norm_along = cpu_norm_along,
    .layer_norm_forward = cpu_layer_norm_forward,
    .layer_norm_backward = cpu_layer_norm_backward,
    .rope = cpu_rope,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .attention_sinks_backward = cpu_attention_sinks_backward,
    .glu_forward = cpu_glu_forward,
    .glu_backward = cpu_glu_backward,
    .gelu_forward = cpu_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .add = cpu_add,
    .scale = cpu_scale,
    .scale_rows = cpu_scale_rows,
    .dropout = cpu_dropout,
    .magnitude_factors = cpu_magnitude_factors,
    .scale_columns = cpu_scale_columns,
    .accumulate_gradient = cpu_accumulate_gradient,
    .round_gradient = cpu_round_gradient,
    .encode_wire = cpu_encode_wire,
    .decode_wire = cpu_decode_wire,
    .sum_wire = cpu_sum_wire,
    .fill_zero = cpu_fill_zero,
    .cast_parameters = cpu_cast_parameters,
    .dequantize = cpu_dequantize,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .add_positions = cpu_add_positions,
    .head_loss = cpu_head_loss,
    .head_sums = cpu_head_sums,
    .head_part_loss = cpu_head_part_loss,
    .norm_partials = cpu_norm_partials,
    .choose_experts = cpu_choose_experts,
    .choose_experts_backward = cpu_choose_experts_backward,
    .router_sums = cpu_router_sums,
    .router_slopes = cpu_router_slopes,
    .sort_slots = cpu_sort_slots,
    .expert_forward = cpu_expert_forward,
    .expert_backward_input = cpu_expert_backward_input,
    .expert_backward_weight = cpu_expert_backward_weight,
    .add_expert_bias = cpu_add_expert_bias,
    .expert_bias_gradient = cpu_expert_bias_gradient,
    .add_bias_share = cpu_add_bias_share,
    .sum_expert_rows = cpu_sum_expert_rows,
    .weigh_expert_rows = cpu_weigh_expert_rows,
    .gate_rows = cpu_gate_rows,
    .gate_rows_backward = cpu_gate_rows_backward,
    .matmul_forward_workspace = cpu_matmul_forward_workspace,
    .matmul_backward_input_workspace = cpu_matmul_backward_input_workspace,
    .matmul_backward_weight_workspace = cpu_matmul_backward_weight_workspace,
    .norm_backward_workspace = cpu_norm_backward_workspace,
    .attention_forward_workspace = cpu_attention_forward_workspace,
    .attention_backward_workspace = cpu_attention_backward_workspace,
    .embedding_backward_workspace = cpu_embedding_backward_workspace,
    .head_loss_workspace = cpu_head_loss_workspace,
    .head_sums_workspace = cpu_head_sums_workspace,
    .head_part_loss_workspace = cpu_head_part_loss_workspace,
    .router_sums_workspace = cpu_router_sums_workspace,
    .sort_slots_workspace = cpu_sort_slots_workspace,
    .expert_forward_workspace = cpu_expert_forward_workspace,
    .expert_backward_input_workspace = cpu_expert_backward_input_workspace,
    .expert_backward_weight_workspace = cpu_expert_backward_weight_workspace,
};

}  // namespace

const KernelTable& cpu_kernels() { return kCpuKernels; }

}  // namespace terrace
