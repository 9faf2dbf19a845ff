#include "tests/runtime/engine/fake_gpu_kernels.h"

#include <fmt/format.h>

#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/kernels/shared_kernels.h"

namespace terrace::test {
namespace {

// Calls move(views...) with the views that an op points to.
template <typename Move>
void visit(MatmulForward& op, Move&& move) {
  move(op.x, op.weight, op.bias, op.y);
}
template <typename Move>
void visit(MatmulBackwardInput& op, Move&& move) {
  move(op.dy, op.weight, op.dx);
}
template <typename Move>
void visit(MatmulBackwardWeight& op, Move&& move) {
  move(op.dy, op.x, op.dweight, op.dbias);
}
template <typename Move>
void visit(RmsNormForward& op, Move&& move) {
  move(op.x, op.weight, op.y, op.rstd, op.squares);
}
template <typename Move>
void visit(RmsNormBackward& op, Move&& move) {
  move(op.dy, op.x, op.weight, op.rstd, op.dresidual, op.dx, op.dweight, op.along);
}
template <typename Move>
void visit(RowSquares& op, Move&& move) {
  move(op.x, op.sums);
}
template <typename Move>
void visit(NormAlong& op, Move&& move) {
  move(op.dy, op.x, op.weight, op.rstd, op.sums);
}
template <typename Move>
void visit(LayerNormForward& op, Move&& move) {
  move(op.x, op.weight, op.bias, op.y, op.mean, op.rstd);
}
template <typename Move>
void visit(LayerNormBackward& op, Move&& move) {
  move(op.dy, op.x, op.weight, op.mean, op.rstd, op.dresidual, op.dx, op.dweight, op.dbias);
}
template <typename Move>
void visit(Rope& op, Move&& move) {
  move(op.heads, op.table, op.positions);
}
template <typename Move>
void visit(AttentionForward& op, Move&& move) {
  move(op.rule.first_keys, op.rule.sinks, op.q, op.k, op.v, op.out, op.log_sum_exp);
}
template <typename Move>
void visit(AttentionBackward& op, Move&& move) {
  move(op.rule.first_keys, op.rule.sinks, op.q, op.k, op.v, op.out, op.log_sum_exp, op.dout, op.dq,
       op.dk, op.dv);
}
template <typename Move>
void visit(AttentionSinksBackward& op, Move&& move) {
  move(op.sinks, op.out, op.log_sum_exp, op.dout, op.dsinks);
}
template <typename Move>
void visit(GluForward& op, Move&& move) {
  move(op.gate_up, op.y, op.row_range);
}
template <typename Move>
void visit(GluBackward& op, Move&& move) {
  move(op.gate_up, op.dy, op.dgate_up, op.row_range);
}
template <typename Move>
void visit(GeluForward& op, Move&& move) {
  move(op.x, op.y);
}
template <typename Move>
void visit(GeluBackward& op, Move&& move) {
  move(op.x, op.dy, op.dx);
}
template <typename Move>
void visit(Add& op, Move&& move) {
  move(op.a, op.b, op.y);
}
template <typename Move>
void visit(Scale& op, Move&& move) {
  move(op.x, op.y);
}
template <typename Move>
void visit(ScaleRows& op, Move&& move) {
  move(op.x, op.y);
}
template <typename Move>
void visit(Dropout& op, Move&& move) {
  move(op.x, op.y, op.samples);
}
template <typename Move>
void visit(MagnitudeFactors& op, Move&& move) {
  move(op.squares, op.magnitude, op.inverses, op.factors);
}
template <typename Move>
void visit(ScaleColumns& op, Move&& move) {
  move(op.x, op.times, op.factors, op.bias, op.y);
}
template <typename Move>
void visit(AccumulateGradient& op, Move&& move) {
  move(op.source, op.target);
}
template <typename Move>
void visit(RoundGradient& op, Move&& move) {
  move(op.source, op.target);
}
template <typename Move>
void visit(EncodeWire& op, Move&& move) {
  move(op.source, op.codes, op.errors);
}
template <typename Move>
void visit(DecodeWire& op, Move&& move) {
  move(op.codes, op.target);
}
template <typename Move>
void visit(SumWire& op, Move&& move) {
  move(op.codes, op.target);
}
template <typename Move>
void visit(FillZero& op, Move&& move) {
  move(op.target);
}
template <typename Move>
void visit(Dequantize& op, Move&& move) {
  move(op.bytes, op.target);
}
template <typename Move>
void visit(CastParameters& op, Move&& move) {
  move(op.source, op.target);
}
template <typename Move>
void visit(EmbeddingForward& op, Move&& move) {
  move(op.tokens, op.wte, op.wpe, op.h, op.positions);
}
template <typename Move>
void visit(AddPositions& op, Move&& move) {
  move(op.h, op.wpe, op.positions);
}
template <typename Move>
void visit(HeadLoss& op, Move&& move) {
  move(op.h, op.weight, op.target, op.dh, op.dweight, op.logits);
}
template <typename Move>
void visit(HeadSums& op, Move&& move) {
  move(op.h, op.weight, op.target, op.sums);
}
template <typename Move>
void visit(HeadPartLoss& op, Move&& move) {
  move(op.h, op.weight, op.target, op.dh, op.dweight, op.sums);
}
template <typename Move>
void visit(NormPartials& op, Move&& move) {
  move(op.gradient, op.partials);
}
template <typename Move>
void visit(ChooseExperts& op, Move&& move) {
  move(op.logits, op.index, op.weight, op.bias);
}
template <typename Move>
void visit(ChooseExpertsBackward& op, Move&& move) {
  move(op.logits, op.index, op.dweight, op.dlogits, op.slopes, op.targets);
}
template <typename Move>
void visit(RouterSums& op, Move&& move) {
  move(op.logits, op.index, op.sums, op.targets);
}
template <typename Move>
void visit(RouterSlopes& op, Move&& move) {
  move(op.sums, op.slopes);
}
template <typename Move>
void visit(SortSlots& op, Move&& move) {
  move(op.index, op.order, op.place, op.offsets);
}
template <typename Move>
void visit(ExpertForward& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.x.matrix, op.weights, op.y);
}
template <typename Move>
void visit(ExpertBackwardInput& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.dy.matrix, op.weights, op.dx);
}
template <typename Move>
void visit(ExpertBackwardWeight& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.dy.matrix, op.x.matrix, op.dweights);
}
template <typename Move>
void visit(AddExpertBias& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.biases, op.y);
}
template <typename Move>
void visit(ExpertBiasGradient& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.dy.matrix, op.weight, op.dbiases);
}
template <typename Move>
void visit(AddBiasShare& op, Move&& move) {
  move(op.rows.order, op.rows.offsets, op.dy.matrix, op.biases, op.dweight);
}
template <typename Move>
void visit(SumExpertRows& op, Move&& move) {
  move(op.rows, op.place, op.weight, op.y);
}
template <typename Move>
void visit(WeighExpertRows& op, Move&& move) {
  move(op.order, op.weight, op.dh, op.act, op.dweight, op.dact, op.weighted, op.row_range);
}
template <typename Move>
void visit(GateRows& op, Move&& move) {
  move(op.x, op.logit, op.y);
}
template <typename Move>
void visit(GateRowsBackward& op, Move&& move) {
  move(op.x, op.logit, op.dy, op.dx, op.dlogit);
}
template <typename Move>
void visit(ParameterUpdate& op, Move&& move) {
  move(op.gradient, op.master, op.slots[0], op.slots[1], op.exponents[0], op.exponents[1],
       op.parameter);
}

FakeGpuQueue& queue_of(const KernelContext& context) {
  return *static_cast<FakeGpuQueue*>(context.stream.handle);
}

template <typename View>
View real_view(const FakeGpuState& state, View view) {
  view.data = state.real(view.data);
  return view;
}

// Returns the op with the addresses where its memory really is.
template <typename Op>
Op real_op(const FakeGpuState& state, Op op) {
  visit(op, [&](auto&... views) { ((views = real_view(state, views)), ...); });
  if constexpr (requires { op.loss_sum; }) {
    op.loss_sum = reinterpret_cast<double*>(state.real(op.loss_sum));
  }
  return op;
}

KernelContext real_context(const KernelContext& context) {
  FakeGpuQueue& queue = queue_of(context);
  KernelContext real;
  real.workers = &queue.workers();
  real.workspace = {queue.state().real(context.workspace.data()), context.workspace.size()};
  return real;
}

template <typename Op, void (*KernelTable::*Run)(const KernelContext&, const Op&)>
void queued(const KernelContext& context, const Op& op) {
  FakeGpuQueue& queue = queue_of(context);
  queue.queue([&table = queue.host_kernels(), real = real_context(context),
               moved = real_op(queue.state(), op)] { (table.*Run)(real, moved); });
}

// Copies the lists of views: they belong to the caller, who may change them before the kernel runs.
void queued_embedding_backward(const KernelContext& context, const EmbeddingBackward& op) {
  FakeGpuQueue& queue = queue_of(context);
  std::vector<TensorView> tokens;
  std::vector<TensorView> dh;
  std::vector<TensorView> positions;
  for (const TensorView& view : op.tokens) tokens.push_back(real_view(queue.state(), view));
  for (const TensorView& view : op.positions) {
    positions.push_back(real_view(queue.state(), view));
  }
  for (const TensorView& view : op.dh) dh.push_back(real_view(queue.state(), view));
  EmbeddingBackward moved = op;
  moved.dwte = real_view(queue.state(), op.dwte);
  moved.dwpe = real_view(queue.state(), op.dwpe);
  queue.queue([&table = queue.host_kernels(), real = real_context(context), moved, tokens, dh,
               positions]() mutable {
    moved.tokens = tokens;
    moved.positions = positions;
    moved.dh = dh;
    table.embedding_backward(real, moved);
  });
}

template <typename Op>
std::string shape_text(const Op& op) {
  const AttentionShape& s = op.shape;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", s.batch, s.queries, s.keys, s.heads,
                     s.key_value_heads, s.head_width, name_of(op.q.dtype), op.rule.scale,
                     op.rule.window, op.q.stride, op.k.stride, op.v.stride,
                     std::is_same_v<Op, AttentionBackward>);
}

struct PreparedAttention {
  std::mutex mutex;
  std::set<std::string> shapes;
  int unprepared_calls = 0;
};

PreparedAttention& prepared_attention() {
  static PreparedAttention prepared;
  return prepared;
}

void prepare_attention(const KernelContext& /*context*/, const AttentionForward& forward,
                       const AttentionBackward& backward) {
  PreparedAttention& prepared = prepared_attention();
  const std::lock_guard lock(prepared.mutex);
  prepared.shapes.insert(shape_text(forward));
  prepared.shapes.insert(shape_text(backward));
}

template <typename Op, void (*KernelTable::*Run)(const KernelContext&, const Op&)>
void queued_attention(const KernelContext& context, const Op& op) {
  {
    PreparedAttention& prepared = prepared_attention();
    const std::lock_guard lock(prepared.mutex);
    if (!prepared.shapes.contains(shape_text(op))) ++prepared.unprepared_calls;
  }
  queued<Op, Run>(context, op);
}

using T = KernelTable;

// Names every op, so that one without a queued form does not compile. The host's kernels
// say how much workspace each needs.
constexpr KernelTable kQueuedOps = {
    .name = "fake gpu",
    .matmul_forward = queued<MatmulForward, &T::matmul_forward>,
    .matmul_backward_input = queued<MatmulBackwardInput, &T::matmul_backward_input>,
    .matmul_backward_weight = queued<MatmulBackwardWeight, &T::matmul_backward_weight>,
    .rms_norm_forward = queued<RmsNormForward, &T::rms_norm_forward>,
    .rms_norm_backward = queued<RmsNormBackward, &T::rms_norm_backward>,
    .row_squares = queued<RowSquares, &T::row_squares>,
    .norm_along = queued<NormAlong, &T::norm_along>,
    .layer_norm_forward = queued<LayerNormForward, &T::layer_norm_forward>,
    .layer_norm_backward = queued<LayerNormBackward, &T::layer_norm_backward>,
    .rope = queued<Rope, &T::rope>,
    .attention_forward = queued_attention<AttentionForward, &T::attention_forward>,
    .attention_backward = queued_attention<AttentionBackward, &T::attention_backward>,
    .attention_sinks_backward = queued<AttentionSinksBackward, &T::attention_sinks_backward>,
    .glu_forward = queued<GluForward, &T::glu_forward>,
    .glu_backward = queued<GluBackward, &T::glu_backward>,
    .gelu_forward = queued<GeluForward, &T::gelu_forward>,
    .gelu_backward = queued<GeluBackward, &T::gelu_backward>,
    .add = queued<Add, &T::add>,
    .scale = queued<Scale, &T::scale>,
    .scale_rows = queued<ScaleRows, &T::scale_rows>,
    .dropout = queued<Dropout, &T::dropout>,
    .magnitude_factors = queued<MagnitudeFactors, &T::magnitude_factors>,
    .scale_columns = queued<ScaleColumns, &T::scale_columns>,
    .accumulate_gradient = queued<AccumulateGradient, &T::accumulate_gradient>,
    .round_gradient = queued<RoundGradient, &T::round_gradient>,
    .encode_wire = queued<EncodeWire, &T::encode_wire>,
    .decode_wire = queued<DecodeWire, &T::decode_wire>,
    .sum_wire = queued<SumWire, &T::sum_wire>,
    .fill_zero = queued<FillZero, &T::fill_zero>,
    .cast_parameters = queued<CastParameters, &T::cast_parameters>,
    .dequantize = queued<Dequantize, &T::dequantize>,
    .embedding_forward = queued<EmbeddingForward, &T::embedding_forward>,
    .embedding_backward = queued_embedding_backward,
    .add_positions = queued<AddPositions, &T::add_positions>,
    .head_loss = queued<HeadLoss, &T::head_loss>,
    .head_sums = queued<HeadSums, &T::head_sums>,
    .head_part_loss = queued<HeadPartLoss, &T::head_part_loss>,
    .norm_partials = queued<NormPartials, &T::norm_partials>,
    .choose_experts = queued<ChooseExperts, &T::choose_experts>,
    .choose_experts_backward = queued<ChooseExpertsBackward, &T::choose_experts_backward>,
    .router_sums = queued<RouterSums, &T::router_sums>,
    .router_slopes = queued<RouterSlopes, &T::router_slopes>,
    .sort_slots = queued<SortSlots, &T::sort_slots>,
    .expert_forward = queued<ExpertForward, &T::expert_forward>,
    .expert_backward_input = queued<ExpertBackwardInput, &T::expert_backward_input>,
    .expert_backward_weight = queued<ExpertBackwardWeight, &T::expert_backward_weight>,
    .add_expert_bias = queued<AddExpertBias, &T::add_expert_bias>,
    .expert_bias_gradient = queued<ExpertBiasGradient, &T::expert_bias_gradient>,
    .add_bias_share = queued<AddBiasShare, &T::add_bias_share>,
    .sum_expert_rows = queued<SumExpertRows, &T::sum_expert_rows>,
    .weigh_expert_rows = queued<WeighExpertRows, &T::weigh_expert_rows>,
    .gate_rows = queued<GateRows, &T::gate_rows>,
    .gate_rows_backward = queued<GateRowsBackward, &T::gate_rows_backward>,
    .prepare_attention = prepare_attention,
    .matmul_forward_workspace = nullptr,
    .matmul_backward_input_workspace = nullptr,
    .matmul_backward_weight_workspace = nullptr,
    .norm_backward_workspace = nullptr,
    .attention_forward_workspace = nullptr,
    .attention_backward_workspace = nullptr,
    .embedding_backward_workspace = nullptr,
    .head_loss_workspace = nullptr,
    .head_sums_workspace = nullptr,
    .head_part_loss_workspace = nullptr,
    .router_sums_workspace = nullptr,
    .sort_slots_workspace = nullptr,
    .expert_forward_workspace = nullptr,
    .expert_backward_input_workspace = nullptr,
    .expert_backward_weight_workspace = nullptr,
};

KernelTable make_table(const KernelTable& host_kernels) {
  KernelTable table = kQueuedOps;
  table.matmul_forward_workspace = host_kernels.matmul_forward_workspace;
  table.matmul_backward_input_workspace = host_kernels.matmul_backward_input_workspace;
  table.matmul_backward_weight_workspace = host_kernels.matmul_backward_weight_workspace;
  table.norm_backward_workspace = host_kernels.norm_backward_workspace;
  table.attention_forward_workspace = host_kernels.attention_forward_workspace;
  table.attention_backward_workspace = host_kernels.attention_backward_workspace;
  table.embedding_backward_workspace = host_kernels.embedding_backward_workspace;
  table.head_loss_workspace = host_kernels.head_loss_workspace;
  table.head_sums_workspace = host_kernels.head_sums_workspace;
  table.head_part_loss_workspace = host_kernels.head_part_loss_workspace;
  table.router_sums_workspace = host_kernels.router_sums_workspace;
  table.sort_slots_workspace = host_kernels.sort_slots_workspace;
  table.expert_forward_workspace = host_kernels.expert_forward_workspace;
  table.expert_backward_input_workspace = host_kernels.expert_backward_input_workspace;
  table.expert_backward_weight_workspace = host_kernels.expert_backward_weight_workspace;
  return table;
}

}  // namespace

const KernelTable& fake_gpu_host_kernels(bool has_shared_kernels) {
  return has_shared_kernels ? shared_kernels() : cpu_kernels();
}

const KernelTable& fake_gpu_kernels(bool has_shared_kernels) {
  static const KernelTable kPlain = make_table(fake_gpu_host_kernels(false));
  static const KernelTable kShared = make_table(fake_gpu_host_kernels(true));
  return has_shared_kernels ? kShared : kPlain;
}

void forget_prepared_attention() {
  PreparedAttention& prepared = prepared_attention();
  const std::lock_guard lock(prepared.mutex);
  prepared.shapes.clear();
  prepared.unprepared_calls = 0;
}

int unprepared_attention_calls() {
  PreparedAttention& prepared = prepared_attention();
  const std::lock_guard lock(prepared.mutex);
  return prepared.unprepared_calls;
}

void fake_gpu_update(const KernelContext& context, const UpdateRule& rule,
                     const ParameterUpdate& update) {
  FakeGpuQueue& queue = queue_of(context);
  ParameterUpdate moved = real_op(queue.state(), update);
  moved.scalars = reinterpret_cast<const StepScalars*>(queue.state().real(update.scalars));
  queue.queue([real = real_context(context), &rule, moved] { rule.cpu(real, moved); });
}

}  // namespace terrace::test
