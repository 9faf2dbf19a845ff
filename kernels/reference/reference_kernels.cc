#include "kernels/reference/reference_kernels.h"

#include "kernels/reference/reference_ops.h"

namespace terrace {
namespace {

constexpr KernelTable kReferenceKernels = {
    .name = "reference",
    .matmul_forward = reference::matmul_forward,
    .matmul_backward_input = reference::matmul_backward_input,
    .matmul_backward_weight = reference::matmul_backward_weight,
    .rms_norm_forward = reference::rms_norm_forward,
    .rms_norm_backward = reference::rms_norm_backward,
    .row_squares = reference::row_squares,
    .norm_along = reference::norm_along,
    .layer_norm_forward = reference::layer_norm_forward,
    .layer_norm_backward = reference::layer_norm_backward,
    .rope = reference::rope,
    .attention_forward = reference::attention_forward,
    .attention_backward = reference::attention_backward,
    .attention_sinks_backward = reference::attention_sinks_backward,
    .glu_forward = reference::glu_forward,
    .glu_backward = reference::glu_backward,
    .gelu_forward = reference::gelu_forward,
    .gelu_backward = reference::gelu_backward,
    .add = reference::add,
    .scale = reference::scale,
    .scale_rows = reference::scale_rows,
    .dropout = reference::dropout,
    .magnitude_factors = reference::magnitude_factors,
    .scale_columns = reference::scale_columns,
    .accumulate_gradient = reference::accumulate_gradient,
    .round_gradient = reference::round_gradient,
    .encode_wire = reference::encode_wire,
    .decode_wire = reference::decode_wire,
    .sum_wire = reference::sum_wire,
    .fill_zero = reference::fill_zero,
    .cast_parameters = reference::cast_parameters,
    .dequantize = reference::dequantize,
    .embedding_forward = reference::embedding_forward,
    .embedding_backward = reference::embedding_backward,
    .add_positions = reference::add_positions,
    .head_loss = reference::head_loss,
    .head_sums = reference::head_sums,
    .head_part_loss = reference::head_part_loss,
    .norm_partials = reference::norm_partials,
    .choose_experts = reference::choose_experts,
    .choose_experts_backward = reference::choose_experts_backward,
    .router_sums = reference::router_sums,
    .router_slopes = reference::router_slopes,
    .sort_slots = reference::sort_slots,
    .expert_forward = reference::expert_forward,
    .expert_backward_input = reference::expert_backward_input,
    .expert_backward_weight = reference::expert_backward_weight,
    .add_expert_bias = reference::add_expert_bias,
    .expert_bias_gradient = reference::expert_bias_gradient,
    .add_bias_share = reference::add_bias_share,
    .sum_expert_rows = reference::sum_expert_rows,
    .weigh_expert_rows = reference::weigh_expert_rows,
    .gate_rows = reference::gate_rows,
    .gate_rows_backward = reference::gate_rows_backward,
    .matmul_forward_workspace = [](const MatmulForward&, int) -> std::size_t { return 0; },
    .matmul_backward_input_workspace = [](const MatmulBackwardInput&, int) -> std::size_t {
      return 0;
    },
    .matmul_backward_weight_workspace = [](const MatmulBackwardWeight&, int) -> std::size_t {
      return 0;
    },
    .norm_backward_workspace = [](std::int64_t, std::int64_t, int) -> std::size_t { return 0; },
    .attention_forward_workspace = reference::attention_forward_workspace,
    .attention_backward_workspace = reference::attention_backward_workspace,
    .embedding_backward_workspace = [](std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                       int) -> std::size_t { return 0; },
    .head_loss_workspace = reference::head_loss_workspace,
    .head_sums_workspace = reference::head_sums_workspace,
    .head_part_loss_workspace = reference::head_part_loss_workspace,
    .router_sums_workspace = [](const RouterSums&, int) -> std::size_t { return 0; },
    .sort_slots_workspace = [](const SortSlots&, int) -> std::size_t { return 0; },
    .expert_forward_workspace = [](const ExpertForward&, int) -> std::size_t { return 0; },
    .expert_backward_input_workspace = [](const ExpertBackwardInput&, int) -> std::size_t {
      return 0;
    },
    .expert_backward_weight_workspace = [](const ExpertBackwardWeight&, int) -> std::size_t {
      return 0;
    },
};

}  // namespace

const KernelTable& reference_kernels() { return kReferenceKernels; }

}  // namespace terrace
