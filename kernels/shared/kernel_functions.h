#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/kernel_table.h"
#include "kernels/shared/activation.h"
#include "kernels/shared/attention_backward.h"
#include "kernels/shared/attention_forward.h"
#include "kernels/shared/attention_sinks.h"
#include "kernels/shared/dropout.h"
#include "kernels/shared/elementwise.h"
#include "kernels/shared/embedding.h"
#include "kernels/shared/expert_biases.h"
#include "kernels/shared/expert_products.h"
#include "kernels/shared/experts.h"
#include "kernels/shared/head_loss.h"
#include "kernels/shared/head_part.h"
#include "kernels/shared/magnitudes.h"
#include "kernels/shared/matmul.h"
#include "kernels/shared/norm_backward.h"
#include "kernels/shared/norm_forward.h"
#include "kernels/shared/norm_sums.h"
#include "kernels/shared/rope.h"
#include "kernels/shared/router.h"
#include "kernels/shared/wire.h"

// The table of all block kernels, for a Launcher.
namespace terrace::shared {

// Functions has a type Launcher, a function Launcher launcher(const KernelContext&), and
// kProductWorkspace, the bytes at the end of a context's workspace that launcher.product() keeps
// for itself. It also has attention_workspace(op), the bytes that launcher.attention(op) needs, and
// kPrepareAttention, the table's prepare_attention.
template <typename Functions>
struct KernelFunctions {
  using Launcher = typename Functions::Launcher;

  template <typename Op, void (*Run)(Launcher&, const Op&)>
  static void run(const KernelContext& context, const Op& op) {
    Launcher launcher = Functions::launcher(context);
    Run(launcher, op);
  }

  template <typename Op>
  static std::size_t product_only(const Op&, int) {
    return Functions::kProductWorkspace;
  }
  static std::size_t backward_weight(const MatmulBackwardWeight& op, int) {
    return matmul_backward_weight_workspace(op) + Functions::kProductWorkspace;
  }
  static std::size_t attention_forward_bytes(const AttentionForward& op, int) {
    check_head_width(op.shape.head_width);
    return Functions::attention_workspace(op);
  }
  static std::size_t attention_backward_bytes(const AttentionBackward& op, int) {
    return std::max(attention_backward_workspace(op), Functions::attention_workspace(op));
  }
  static std::size_t head_loss_bytes(const HeadLoss& op, int) {
    return head_loss_workspace(op) + Functions::kProductWorkspace;
  }
  static std::size_t head_sums_bytes(const HeadSums& op, int) {
    return head_sums_workspace(op) + Functions::kProductWorkspace;
  }
  static std::size_t head_part_loss_bytes(const HeadPartLoss& op, int) {
    return head_part_loss_workspace(op) + (op.dh.empty() ? 0 : Functions::kProductWorkspace);
  }
};

// K is KernelFunctions, and L its Launcher.
template <typename Functions, typename K = KernelFunctions<Functions>,
          typename L = typename Functions::Launcher>
inline constexpr KernelTable kUnnamedKernels = {
    .name = "",
    .matmul_forward = K::template run<MatmulForward, matmul_forward<L>>,
    .matmul_backward_input = K::template run<MatmulBackwardInput, matmul_backward_input<L>>,
    .matmul_backward_weight = K::template run<MatmulBackwardWeight, matmul_backward_weight<L>>,
    .rms_norm_forward = K::template run<RmsNormForward, rms_norm_forward<L>>,
    .rms_norm_backward = K::template run<RmsNormBackward, rms_norm_backward<L>>,
    .row_squares = K::template run<RowSquares, row_squares<L>>,
    .norm_along = K::template run<NormAlong, norm_along<L>>,
    .layer_norm_forward = K::template run<LayerNormForward, layer_norm_forward<L>>,
    .layer_norm_backward = K::template run<LayerNormBackward, layer_norm_backward<L>>,
    .rope = K::template run<Rope, rope<L>>,
    .attention_forward = K::template run<AttentionForward, attention_forward<L>>,
    .attention_backward = K::template run<AttentionBackward, attention_backward<L>>,
    .attention_sinks_backward =
        K::template run<AttentionSinksBackward, attention_sinks_backward<L>>,
    .glu_forward = K::template run<GluForward, glu_forward<L>>,
    .glu_backward = K::template run<GluBackward, glu_backward<L>>,
    .gelu_forward = K::template run<GeluForward, gelu_forward<L>>,
    .gelu_backward = K::template run<GeluBackward, gelu_backward<L>>,
    .add = K::template run<Add, add<L>>,
    .scale = K::template run<Scale, scale<L>>,
    .scale_rows = K::template run<ScaleRows, scale_rows<L>>,
    .dropout = K::template run<Dropout, dropout<L>>,
    .magnitude_factors = K::template run<MagnitudeFactors, magnitude_factors<L>>,
    .scale_columns = K::template run<ScaleColumns, scale_columns<L>>,
    .accumulate_gradient = K::template run<AccumulateGradient, accumulate_gradient<L>>,
    .round_gradient = K::template run<RoundGradient, round_gradient<L>>,
    .encode_wire = K::template run<EncodeWire, encode_wire<L>>,
    .decode_wire = K::template run<DecodeWire, decode_wire<L>>,
    .sum_wire = K::template run<SumWire, sum_wire<L>>,
    .fill_zero = K::template run<FillZero, fill_zero<L>>,
    .cast_parameters = K::template run<CastParameters, cast_parameters<L>>,
    .dequantize = K::template run<Dequantize, dequantize<L>>,
    .embedding_forward = K::template run<EmbeddingForward, embedding_forward<L>>,
    .embedding_backward = K::template run<EmbeddingBackward, embedding_backward<L>>,
    .add_positions = K::template run<AddPositions, add_positions<L>>,
    .head_loss = K::template run<HeadLoss, head_loss<L>>,
    .head_sums = K::template run<HeadSums, head_sums<L>>,
    .head_part_loss = K::template run<HeadPartLoss, head_part_loss<L>>,
    .norm_partials = K::template run<NormPartials, norm_partials<L>>,
    .choose_experts = K::template run<ChooseExperts, choose_experts<L>>,
    .choose_experts_backward = K::template run<ChooseExpertsBackward, choose_experts_backward<L>>,
    .router_sums = K::template run<RouterSums, router_sums<L>>,
    .router_slopes = K::template run<RouterSlopes, router_slopes<L>>,
    .sort_slots = K::template run<SortSlots, sort_slots<L>>,
    .expert_forward = K::template run<ExpertForward, expert_forward<L>>,
    .expert_backward_input = K::template run<ExpertBackwardInput, expert_backward_input<L>>,
    .expert_backward_weight = K::template run<ExpertBackwardWeight, expert_backward_weight<L>>,
    .add_expert_bias = K::template run<AddExpertBias, add_expert_bias<L>>,
    .expert_bias_gradient = K::template run<ExpertBiasGradient, expert_bias_gradient<L>>,
    .add_bias_share = K::template run<AddBiasShare, add_bias_share<L>>,
    .sum_expert_rows = K::template run<SumExpertRows, sum_expert_rows<L>>,
    .weigh_expert_rows = K::template run<WeighExpertRows, weigh_expert_rows<L>>,
    .gate_rows = K::template run<GateRows, gate_rows<L>>,
    .gate_rows_backward = K::template run<GateRowsBackward, gate_rows_backward<L>>,
    .prepare_attention = Functions::kPrepareAttention,
    .matmul_forward_workspace = K::template product_only<MatmulForward>,
    .matmul_backward_input_workspace = K::template product_only<MatmulBackwardInput>,
    .matmul_backward_weight_workspace = K::backward_weight,
    .norm_backward_workspace = norm_backward_workspace,
    .attention_forward_workspace = K::attention_forward_bytes,
    .attention_backward_workspace = K::attention_backward_bytes,
    .embedding_backward_workspace = embedding_backward_workspace,
    .head_loss_workspace = K::head_loss_bytes,
    .head_sums_workspace = K::head_sums_bytes,
    .head_part_loss_workspace = K::head_part_loss_bytes,
    .router_sums_workspace = router_sums_workspace,
    .sort_slots_workspace = sort_slots_workspace,
    .expert_forward_workspace = no_expert_workspace<ExpertForward>,
    .expert_backward_input_workspace = no_expert_workspace<ExpertBackwardInput>,
    .expert_backward_weight_workspace = no_expert_workspace<ExpertBackwardWeight>,
};

template <typename Functions>
constexpr KernelTable kernel_functions(std::string_view name) {
  KernelTable table = kUnnamedKernels<Functions>;
  table.name = name;
  return table;
}

}  // namespace terrace::shared
