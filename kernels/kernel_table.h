#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/expert_ops.h"
#include "kernels/kernel_context.h"
#include "kernels/quantized_matrix.h"
#include "kernels/wire_ops.h"
#include "memory/tensor.h"

// The seam to compute. Every op is a pure function of its arguments: it never allocates device or
// arena memory, never synchronises, and gives the same bits for any number of workers. Activations
// and parameters are all fp32, all bf16 or all fp16 (the "compute type"); statistics, weight
// gradients and losses are wider as stated. In bf16 and fp16, the softmax weights of attention and
// the gradients of scores and logits may be rounded to that type before they enter a matrix
// product, because matrix units demand it. Where query heads share keys and values, each query
// head's gradient of these may be rounded before it is added. In fp16 a number that is too large
// becomes infinite.
// Reference: naive scalar code, the definition of correct. cpu: tile and vector registers, oneDNN;
// it has no fp16.
//
// Letters: R rows (tokens of one micro-batch = B*T), B batch, T sequence, C width, N out, K in,
// H query heads, G key-value heads (H a multiple of G), D head width, I intermediate, V vocabulary.
namespace terrace {

// y[R,N] = x[R,K] weight[N,K]^T (+ bias[N]): accumulated in fp32, rounded once. bias may be empty.
struct MatmulForward {
  TensorView x, weight, bias, y;
};
// dx[R,K] = dy[R,N] weight[N,K].
struct MatmulBackwardInput {
  TensorView dy, weight, dx;
};
// dweight[N,K] (fp32) = dy[R,N]^T x[R,K]; dbias[N] (fp32) = column sums of dy, rows in a fixed tree
// of the shape; dbias may be empty. dweight.data may be null, with the shape set, if dweight is not
// wanted: x is then not read, and no product is computed. dy may be columns of a wider matrix.
struct MatmulBackwardWeight {
  TensorView dy, x, dweight, dbias;
  GradientMode mode = GradientMode::kAssign;
  std::int64_t dy_stride = 0;  // elements from row to row of dy; 0: N
};

// How a root-mean-square norm joins its weight w; Hugging Face's classes differ.
enum class RmsNormForm : std::uint8_t {
  kRoundThenMultiply,  // y = round(w * round(x * rstd)): llama and most
  kMultiplyThenRound,  // y = round(w * (x * rstd)), the product in fp32: olmo2
  kMultiplyByOnePlus,  // y = round((1 + w) * (x * rstd)), also in fp32: gemma
};

// The root-mean-square norm of groups of C = weight's elements, side by side in each of R rows: if
// there is one group, it is the whole row; if there are several, they are heads, each normed by
// itself. x, y: rows of groups * C elements. rstd[R*groups] (fp32) = 1/sqrt(mean(x^2) + epsilon);
// the values of a row's groups are next to each other.
//
// Where tensor-parallel ranks divide the width of a norm, groups is 1, x, weight and y are this
// rank's columns, and total_width is the whole width. `squares` (fp32 [parts, R]) then has the sums
// of squares that RowSquares computed for each part; the parts are added in order.
struct RmsNormForward {
  StridedRows x;
  TensorView weight;
  StridedRows y;
  TensorView rstd;
  float epsilon = 1e-5F;
  RmsNormForm form = RmsNormForm::kRoundThenMultiply;
  TensorView squares = {};       // may be empty
  std::int64_t total_width = 0;  // with squares
};
// dx = dresidual + the norm's input gradient, rounded once. dresidual may be empty. dx may be the
// same memory as dresidual or as dy. dweight[C] is fp32: it is computed from the rounded x * rstd
// if the forward multiplied the weight by that, else from x * rstd in fp32. `along` (fp32 [parts,
// R]; may be empty) has the sums that NormAlong computed for each part of a divided width; they are
// added in order.
struct RmsNormBackward {
  StridedRows dy, x;
  TensorView weight, rstd;
  StridedRows dresidual, dx;
  TensorView dweight;
  RmsNormForm form = RmsNormForm::kRoundThenMultiply;
  GradientMode mode = GradientMode::kAssign;
  TensorView along = {};
  std::int64_t total_width = 0;  // with along
};
// sums[R] (fp32) = the sum of squares of each row of x: this rank's part of a divided norm.
struct RowSquares {
  StridedRows x;
  TensorView sums;
};
// sums[R] (fp32) = the sum over a row's columns of dy * w' * x * rstd, with w' = w, or 1 + w where
// the form says so. The ranks of a divided norm add these sums before its backward.
struct NormAlong {
  StridedRows dy, x;
  TensorView weight, rstd, sums;
  RmsNormForm form = RmsNormForm::kRoundThenMultiply;
};

// y = weight * (x - mean) * rstd + bias; mean[R], rstd[R] in fp32. bias and dbias may be empty.
struct LayerNormForward {
  TensorView x, weight, bias, y, mean, rstd;
  float epsilon = 1e-5F;
};
struct LayerNormBackward {
  TensorView dy, x, weight, mean, rstd, dresidual, dx, dweight, dbias;
  GradientMode mode = GradientMode::kAssign;
};

// Rotary embedding in place, half-split form, on heads [R, n * head_width]. The first rotary_width
// elements of each head are rotated, element i with element i + rotary_width/2; the rest stay.
// table [P, rotary_width] in fp32: each row has the cosines of rotary_width/2 angles, then their
// sines, both perhaps times a factor. Row r uses row positions[r] of the table (i32 [R], each in
// [0, P)), or, where positions is empty, row first_position + r mod sequence. `inverse` computes
// the gradient: the sines are negated. rotary_width is even.
struct Rope {
  StridedRows heads;
  TensorView table;
  TensorView positions = {};
  std::int64_t sequence = 0, first_position = 0, head_width = 0, rotary_width = 0;
  bool inverse = false;
};

// Attention of `queries` queries to `keys` keys in each of `batch` sequences.
struct AttentionShape {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, key_value_heads = 0, head_width = 0;
};
// Which keys a query sees, and how its scores are scaled and capped. Query i of a sequence stands
// at position keys - queries + i and sees the keys up to its own position, at least one. With a
// window W > 0 it sees only the last W of them: key > position - W. With first_keys (i32 [batch,
// queries]) it sees no key before its own first key, where its document starts. A first key is at
// most the query's position, and never less than the first key of the query before it. A score is
// scale * q.k; with soft_cap > 0 it then becomes soft_cap * tanh(score / soft_cap). With sinks
// ([H], compute type), every query of head h also sees a key without a value, whose score is
// sinks[h]: exp(sinks[h]) is a term of the softmax's sum, and so of log_sum_exp.
struct AttentionRule {
  float scale = 1.0F;
  float soft_cap = 0.0F;
  std::int64_t window = 0;
  TensorView first_keys = {};  // may be empty
  TensorView sinks = {};       // may be empty
};
// q [batch*queries, H*D], k and v [batch*keys, G*D], columns of one matrix or of several: query
// head h sees the keys and values of head h / (H/G). out [batch*queries, H*D]; log_sum_exp [batch,
// H, queries] in fp32, kept for the backward. queries <= keys. A matrix of all queries by all keys
// never exists.
struct AttentionForward {
  AttentionShape shape;
  AttentionRule rule;
  StridedRows q, k, v;
  TensorView out, log_sum_exp;
};
// dq, dk and dv have the shapes of q, k and v. queries == keys, because a caller that keeps the
// keys of earlier calls does not train. The rule's sinks are not read: log_sum_exp has them.
struct AttentionBackward {
  AttentionShape shape;
  AttentionRule rule;
  StridedRows q, k, v;
  TensorView out, log_sum_exp, dout;
  StridedRows dq = {}, dk = {}, dv = {};
};
// dsinks[H] (fp32) = minus the sum, over all queries of a head, of exp(sinks[h] - log_sum_exp)
// times the query's dout.out. Queries are added in an order that the shape fixes. keys is not read.
struct AttentionSinksBackward {
  AttentionShape shape;
  TensorView sinks, out, log_sum_exp, dout, dsinks;
  GradientMode mode = GradientMode::kAssign;
};

// y[R,I] = activation(gate) * up with gate_up [R,2I] = gate | up, rounded once.
enum class GateActivation : std::uint8_t {
  kSilu,      // gate * sigmoid(gate)
  kGeluTanh,  // GELU by the tanh formula: gemma's gelu_pytorch_tanh
  // With g = min(gate, kGateClamp) and u = up clamped to [-kGateClamp, kGateClamp], the result is
  // g * sigmoid(kGateSlope * g) * (u + 1): gpt_oss. A clamped element has no gradient.
  kClampedGate,
};
inline constexpr float kGateClamp = 7.0F;
inline constexpr float kGateSlope = 1.702F;
struct GluForward {
  TensorView gate_up, y;
  GateActivation activation = GateActivation::kSilu;
  // i32; if it is not empty, only the rows from its first number up to its last one are computed.
  TensorView row_range = {};
};
struct GluBackward {
  TensorView gate_up, dy, dgate_up;
  GateActivation activation = GateActivation::kSilu;
  TensorView row_range = {};  // as in GluForward
};
// GELU by the tanh formula (gelu_new), elementwise on equal shapes.
struct GeluForward {
  TensorView x, y;
};
struct GeluBackward {
  TensorView x, dy, dx;
};

// y = a + b_scale * b; y may be a or b. The product and the sum are fp32; the sum is rounded once
// to the compute type.
struct Add {
  TensorView a, b, y;
  float b_scale = 1;
};
// y = factor * x, rounded once; y may be x.
struct Scale {
  TensorView x, y;
  float factor = 1;
};
// y = factor * x, or y + factor * x where it adds. Rows of both may be columns of a wider matrix.
// The product and the sum are fp32; the result is rounded once to the compute type. x and y do not
// overlap.
struct ScaleRows {
  StridedRows x, y;
  float factor = 1;
  bool adds = false;
};
// Inverted dropout (Srivastava et al. 2014, JMLR 15): y = 0 where an element is dropped, else
// factor * x, an fp32 product rounded once. y may be x. Row r is position p = r % positions of
// sample samples[r]; if that number is negative, the row is copied. Column c is column e =
// first_column + c of the whole row. An element is kept if its random word is at least `threshold`:
// word e % 4 of philox({seed}, {p 2^32 + e / 4, stream, samples[r]}), base/philox.h.
struct Dropout {
  TensorView x, y;             // [R, C]
  TensorView samples;          // i32 [R]
  std::int64_t positions = 1;  // of a sample
  std::int64_t first_column = 0;
  std::uint64_t seed = 0;       // the key of the random words
  std::uint32_t stream = 0;     // each layer has another, and so other random words
  std::uint32_t threshold = 0;  // the probability times 2^32
  float factor = 1;             // 1 / (1 - the probability)
};
// Computes for each of N columns, from the sum of the squares of its weights: norms = the root of
// squares, rounded to the type of magnitude; inverses = 1 / norms; factors = magnitude / norms. All
// are fp32 [N] except magnitude. Both results are 0 where a norm is 0.
struct MagnitudeFactors {
  TensorView squares, magnitude, inverses, factors;
};
// y = factor * (x - bias) + bias, with a factor (fp32) and a bias for each column; with `times`,
// the result is factor * ((x - bias) * times) instead. bias and times may be empty. Computed in
// fp32 and rounded once to the compute type. Rows of x, times and y may be columns of a wider
// matrix. y may be x.
struct ScaleColumns {
  StridedRows x, times;
  TensorView factors, bias;
  StridedRows y;
};
// target += source, both fp32: a micro-batch's gradient joins the sum.
struct AccumulateGradient {
  TensorView source, target;
};
// target (bf16) = source (fp32), rounded to nearest even: a finished gradient is kept and sent in
// half the bytes.
struct RoundGradient {
  TensorView source, target;
};
// target = 0.
struct FillZero {
  TensorView target;
};
// fp32 -> bf16 (ties away from zero: parameters) or fp16 (to nearest even), from either to fp32, or
// a copy between equal types.
struct CastParameters {
  TensorView source, target;
};

// target = the numbers of a quantised matrix, or of a part of one: each is level times factor in
// fp32, rounded once to the compute type. `bytes` (u8) has the format of quantized_matrix.h and
// begins on a boundary of 4; target has shape.elements elements.
struct Dequantize {
  TensorView bytes;
  QuantizedShape shape;
  TensorView target;
};

// h[R,C] = scale * wte[token] (+ wpe[position]), rounded once; tokens i32 [R] in [0, V). wpe [P,C]
// may be empty. The position of row r is positions[r] (i32 [R], in [0, P)), or r mod T where
// positions is empty. Where wte is a part of the vocabulary, first_token is set: the rows of wte
// belong to the tokens from first_token on, and h is zero for tokens of other parts.
struct EmbeddingForward {
  TensorView tokens, wte, wpe, h;
  std::int64_t sequence = 0;
  std::optional<std::int64_t> first_token = std::nullopt;
  TensorView positions = {};
  float scale = 1;
};
// h[r] += wpe[position], rounded once. The position of row r of h is positions[r] (i32, one for
// each row of h), or (first_row + r) mod T where positions is empty.
struct AddPositions {
  TensorView h, wpe;
  std::int64_t sequence = 0, first_row = 0;
  TensorView positions = {};
};
// For all micro-batches of a step at once. Per micro-batch and vocabulary row, the rows of dh are
// added from zero in row order, then the micro-batches in order; the sum is multiplied by scale and
// then stored (dwte = 0 + sum, rows that no token names become 0) or added once to dwte
// (kAccumulate: a tied head's gradient is already there). dwpe is computed in the same way from all
// rows of each position in order, without scale, and is always assigned. Both are fp32.
// first_token: as above; tokens of other parts are skipped, and so is padding_token, which is a
// number in the whole vocabulary. dwte.data may be null, with the shape set, if dwte is not wanted.
struct EmbeddingBackward {
  std::span<const TensorView> tokens;  // one [R] per micro-batch
  std::span<const TensorView> dh;      // one [R,C] per micro-batch
  TensorView dwte, dwpe;
  std::int64_t sequence = 0;
  GradientMode wte_mode = GradientMode::kAssign;
  std::optional<std::int64_t> first_token = std::nullopt;
  std::span<const TensorView> positions = {};  // one i32 [R] per micro-batch; empty: r mod T
  float scale = 1;                             // as in EmbeddingForward
  std::int64_t padding_token = -1;             // adds nothing to dwte (Hugging Face's padding_idx)
};

// The language-model head with its loss, computed in parts that the shape fixes: the logits never
// all exist at once. A logit is logit_scale * (h . weight), and with soft_cap > 0 then soft_cap *
// tanh(logit / soft_cap); the loss, the gradients and the logits that are written use this number,
// in fp32. target is i32 [R]; a row with a negative target is not counted. Writes the sum of -log
// p(target) over the counted rows, in fp64 by a fixed tree over rows, to *loss_sum; if dh is not
// empty, also writes the gradients of (gradient_scale * loss_sum): dh[R,C], and dweight[V,C]
// (fp32), which may be empty. If logits is not empty ([R,V] fp32, for sampling), it is written and
// targets may be empty.
struct HeadLoss {
  TensorView h, weight, target, dh, dweight, logits;
  float gradient_scale = 1.0F;
  GradientMode mode = GradientMode::kAssign;
  double* loss_sum = nullptr;
  float logit_scale = 1;
  float soft_cap = 0;  // 0: none
};

// The same with a vocabulary in N parts: weight has the V rows of the tokens from first_token on. A
// first pass computes for each row the numbers that the parts must exchange; they are {0, 0, 0} for
// rows that are not counted.
struct LogitSums {
  float max = 0;     // the largest logit of the part
  float sum = 0;     // the sum of exp(logit - max)
  float target = 0;  // the target's logit; 0 where another part has it
};
inline constexpr std::int64_t kLogitSums = 3;
struct HeadSums {
  TensorView h, weight, target;
  TensorView sums;  // fp32 [R,3]: LogitSums of each row
  std::int64_t first_token = 0;
  float logit_scale = 1;  // as in HeadLoss
  float soft_cap = 0;
};
// The second pass, given the sums of all parts. loss_sum is the loss over the whole vocabulary, the
// same in every part; dh is this part's share of the gradient, to be added over the parts. dh may
// be empty; then h and weight are not read, and dweight is empty too. With dh, dweight may be
// empty.
struct HeadPartLoss {
  TensorView h, weight, target, dh, dweight;
  TensorView sums;  // fp32 [N,R,3], parts in order
  std::int64_t first_token = 0;
  float gradient_scale = 1.0F;
  GradientMode mode = GradientMode::kAssign;
  double* loss_sum = nullptr;
  float logit_scale = 1;  // as in HeadLoss
  float soft_cap = 0;
};

// Sum of squares of each block of 4096 elements of gradient (of a compute type; the last block may
// be short), in fp64 by a fixed tree: partials[i] for block i.
inline constexpr std::int64_t kNormBlock = 4096;
struct NormPartials {
  TensorView gradient;
  TensorView partials;  // fp64
};

struct KernelTable {
  std::string_view name;

  void (*matmul_forward)(const KernelContext&, const MatmulForward&);
  void (*matmul_backward_input)(const KernelContext&, const MatmulBackwardInput&);
  void (*matmul_backward_weight)(const KernelContext&, const MatmulBackwardWeight&);
  void (*rms_norm_forward)(const KernelContext&, const RmsNormForward&);
  void (*rms_norm_backward)(const KernelContext&, const RmsNormBackward&);
  void (*row_squares)(const KernelContext&, const RowSquares&);
  void (*norm_along)(const KernelContext&, const NormAlong&);
  void (*layer_norm_forward)(const KernelContext&, const LayerNormForward&);
  void (*layer_norm_backward)(const KernelContext&, const LayerNormBackward&);
  void (*rope)(const KernelContext&, const Rope&);
  void (*attention_forward)(const KernelContext&, const AttentionForward&);
  void (*attention_backward)(const KernelContext&, const AttentionBackward&);
  void (*attention_sinks_backward)(const KernelContext&, const AttentionSinksBackward&);
  void (*glu_forward)(const KernelContext&, const GluForward&);
  void (*glu_backward)(const KernelContext&, const GluBackward&);
  void (*gelu_forward)(const KernelContext&, const GeluForward&);
  void (*gelu_backward)(const KernelContext&, const GeluBackward&);
  void (*add)(const KernelContext&, const Add&);
  void (*scale)(const KernelContext&, const Scale&);
  void (*scale_rows)(const KernelContext&, const ScaleRows&);
  void (*dropout)(const KernelContext&, const Dropout&);
  void (*magnitude_factors)(const KernelContext&, const MagnitudeFactors&);
  void (*scale_columns)(const KernelContext&, const ScaleColumns&);
  void (*accumulate_gradient)(const KernelContext&, const AccumulateGradient&);
  void (*round_gradient)(const KernelContext&, const RoundGradient&);
  void (*encode_wire)(const KernelContext&, const EncodeWire&);
  void (*decode_wire)(const KernelContext&, const DecodeWire&);
  void (*sum_wire)(const KernelContext&, const SumWire&);
  void (*fill_zero)(const KernelContext&, const FillZero&);
  void (*cast_parameters)(const KernelContext&, const CastParameters&);
  void (*dequantize)(const KernelContext&, const Dequantize&);
  void (*embedding_forward)(const KernelContext&, const EmbeddingForward&);
  void (*embedding_backward)(const KernelContext&, const EmbeddingBackward&);
  void (*add_positions)(const KernelContext&, const AddPositions&);
  void (*head_loss)(const KernelContext&, const HeadLoss&);
  void (*head_sums)(const KernelContext&, const HeadSums&);
  void (*head_part_loss)(const KernelContext&, const HeadPartLoss&);
  void (*norm_partials)(const KernelContext&, const NormPartials&);
  void (*choose_experts)(const KernelContext&, const ChooseExperts&);
  void (*choose_experts_backward)(const KernelContext&, const ChooseExpertsBackward&);
  void (*router_sums)(const KernelContext&, const RouterSums&);
  void (*router_slopes)(const KernelContext&, const RouterSlopes&);
  void (*sort_slots)(const KernelContext&, const SortSlots&);
  void (*expert_forward)(const KernelContext&, const ExpertForward&);
  void (*expert_backward_input)(const KernelContext&, const ExpertBackwardInput&);
  void (*expert_backward_weight)(const KernelContext&, const ExpertBackwardWeight&);
  void (*add_expert_bias)(const KernelContext&, const AddExpertBias&);
  void (*expert_bias_gradient)(const KernelContext&, const ExpertBiasGradient&);
  void (*add_bias_share)(const KernelContext&, const AddBiasShare&);
  void (*sum_expert_rows)(const KernelContext&, const SumExpertRows&);
  void (*weigh_expert_rows)(const KernelContext&, const WeighExpertRows&);
  void (*gate_rows)(const KernelContext&, const GateRows&);
  void (*gate_rows_backward)(const KernelContext&, const GateRowsBackward&);

  // Does the work that the first ops of these shapes would do: loads libraries, finds plans. Called
  // by one thread, while no op runs, for the device that is current in that thread; data pointers
  // are not followed. Null if there is nothing to prepare.
  void (*prepare_attention)(const KernelContext&, const AttentionForward&,
                            const AttentionBackward&) = nullptr;

  // Bytes of KernelContext::workspace that the ops above need: 0 where not listed. Only shapes,
  // dtypes, modes and which views are empty count; data pointers are not followed.
  std::size_t (*matmul_forward_workspace)(const MatmulForward&, int workers);
  std::size_t (*matmul_backward_input_workspace)(const MatmulBackwardInput&, int workers);
  std::size_t (*matmul_backward_weight_workspace)(const MatmulBackwardWeight&, int workers);
  // For a norm of groups, `rows` counts each group of each row, and `width` is the width of a
  // group.
  std::size_t (*norm_backward_workspace)(std::int64_t rows, std::int64_t width, int workers);
  std::size_t (*attention_forward_workspace)(const AttentionForward&, int workers);
  std::size_t (*attention_backward_workspace)(const AttentionBackward&, int workers);
  std::size_t (*embedding_backward_workspace)(std::int64_t rows, std::int64_t micro_batches,
                                              std::int64_t vocabulary, std::int64_t width,
                                              int workers);
  std::size_t (*head_loss_workspace)(const HeadLoss&, int workers);
  std::size_t (*head_sums_workspace)(const HeadSums&, int workers);
  std::size_t (*head_part_loss_workspace)(const HeadPartLoss&, int workers);
  std::size_t (*router_sums_workspace)(const RouterSums&, int workers);
  std::size_t (*sort_slots_workspace)(const SortSlots&, int workers);
  std::size_t (*expert_forward_workspace)(const ExpertForward&, int workers);
  std::size_t (*expert_backward_input_workspace)(const ExpertBackwardInput&, int workers);
  std::size_t (*expert_backward_weight_workspace)(const ExpertBackwardWeight&, int workers);
};

}  // namespace terrace
