#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"
#include "memory/tensor.h"

// The ops of a layer of experts (Shazeer et al. 2017, arXiv:1701.06538). A router chooses k of E
// experts for each row, and the row's result is the weighted sum of these experts' results.
//
// Letters, besides those of kernel_table.h: E experts, k chosen experts of a row, S = R*k slots.
// Slot r*k + j belongs to the j-th expert of row r; the experts of a row are in ascending order.
// Slots are sorted by their expert, so that the rows of one expert lie side by side: a matrix of S
// rows in this order is called sorted here. How many rows an expert has is known only when the op
// runs, and may be anything from 0 to R.
namespace terrace {

// How a row's logits become the scores of its experts.
enum class ExpertScores : std::uint8_t {
  kSoftmax,  // the probabilities of a softmax
  kSigmoid,  // the sigmoid of each logit by itself (DeepSeek-AI 2024, arXiv:2412.19437)
};

// How the logits of a row become the weights of its experts.
struct ExpertRule {
  // Whether the weights are the softmax over the row's k chosen logits; else they are the
  // probabilities of the chosen experts in the softmax over all E logits. With kSigmoid: whether
  // the chosen scores are divided by 1e-20 plus their sum; else the scores are the weights.
  bool normalizes = true;
  // Whether a weight is rounded to the compute type.
  bool rounds_weights = false;
  ExpertScores scores = ExpertScores::kSoftmax;
  // The rest is for kSigmoid. Neighbouring experts are in `groups` groups of E / groups >= 2. Only
  // the experts of the row's `chosen_groups` best groups can be chosen; a group is as good as the
  // sum of its two best experts. At most kGroupsMax groups.
  std::int32_t groups = 1;
  std::int32_t chosen_groups = 1;
  float scale = 1;  // of the weights
  static constexpr std::int32_t kGroupsMax = 64;

  friend bool operator==(const ExpertRule&, const ExpertRule&) = default;
};

// Writes the k experts with the largest logits of each row, in ascending order, to index (i32
// [R,k]), and their weights to weight (fp32 [R,k]). Where logits are equal, the lower expert comes
// first, and a NaN comes after all numbers, so index always has k different experts. A NaN among a
// row's logits makes all its weights NaN. logits [R,E] are of the compute type; softmax is computed
// in fp32. With kSigmoid, experts are chosen by score + bias in place of the logit, with the groups
// of the rule, and the weights are made from scores without bias; all in fp32. Groups follow
// the same order: the lower one of equal ones comes first, and one with a NaN comes last.
struct ChooseExperts {
  TensorView logits, index, weight;
  ExpertRule rule;
  // For kSigmoid: [P,E] of the compute type; empty: zero. The bias of an expert is the sum of
  // its P numbers, added in order in fp32. So three bf16 numbers hold a bias of fp32 exactly.
  TensorView bias = {};
};
// dlogits [R,E] (compute type) = the gradient of the logits, given the gradient dweight (fp32
// [R,k]) of the weights. The choice itself has no gradient, and a weight's rounding is left out.
// If slopes (fp32 [E+1], of RouterSlopes) are given, the gradient of the router's losses is added
// in fp32 before the rounding. With p the softmax over all E logits and L the logarithm of the sum
// of their exponentials, that is p[e] * (slopes[e] - sum of p * slopes + slopes[E] * L) in each row
// that counts (RouterSums::targets).
struct ChooseExpertsBackward {
  TensorView logits, index, dweight, dlogits;
  ExpertRule rule;
  TensorView slopes = {};
  TensorView targets = {};
};

// The target of a row that only fills its sequence up. Other negative targets belong to tokens
// that are not trained on.
inline constexpr std::int32_t kPaddingTarget = -2;

// Returns how many numbers a RouterSums writes.
constexpr std::int64_t router_sums_of(std::int64_t experts) { return 2 * experts + 2; }
// Writes what the losses of a router need to know of the rows that count. sums (fp64 [2E+2]) has,
// for each expert, the number of rows that have chosen it; then, for each expert, the sum of its
// probabilities in the softmax over all E logits; then the sum of L^2, with L the logarithm of the
// sum of a row's exponentials; then the number of rows that count. logits [R,E] are of the compute
// type, index is i32 [R,k]. A row whose target (i32 [R]) is kPaddingTarget does not count; without
// targets all rows count. Probabilities and L are fp32, their sums fp64. A NaN among the logits of
// a row that counts makes the sums of probabilities and of L^2 NaN.
struct RouterSums {
  TensorView logits, index, sums;
  TensorView targets = {};
};
// Writes the slopes (fp32 [E+1]) of a micro-batch's router losses, from the sums (fp64 [n,2E+2]) of
// n of its layers. They are computed in fp64 and rounded once:
//  * slopes[e] = balance * E * f[e] / rows, the derivative of the balance loss by a probability of
//    expert e (Fedus et al. 2021, arXiv:2101.03961). rows is the number of rows of the n layers
//    that count, and f[e] = the number of those that have chosen expert e, divided by rows.
//  * slopes[E] = 2 * z / (layers * rows of a layer that count), the derivative of the mean of L^2
//    (Zoph et al. 2022, arXiv:2202.08906) over L of a row of one of `layers` layers.
// Where no row counts, all slopes are 0.
struct RouterSlopes {
  TensorView sums, slopes;
  std::int64_t layers = 1;
  double balance = 0;
  double z = 0;
};

// Sorts slots by their expert; slots of one expert stay in order. order (i32 [S]) has the slots in
// sorted order, place (i32 [R,k]) has the place of each slot in it, and offsets (i32 [E+1]) has the
// place at which each expert's slots begin, and S at its end.
struct SortSlots {
  TensorView index, order, place, offsets;
};

// The sorted rows of some neighbouring experts. offsets are those of SortSlots from the first of
// these experts on, one more than there are experts. Only the sorted rows from the first offset to
// the last one are read and written.
struct ExpertRows {
  TensorView order, offsets;
  std::int64_t per_row = 1;  // k
};
// An operand of a product with experts. A sorted one has a row for each slot. One that is by row
// has R rows, and a slot reads row slot / k.
struct ExpertSide {
  TensorView matrix;
  bool is_by_row = false;
};

// y[S,N] = x[S,K] weight[N,K]^T for each slot, with the weight of its expert. Row e of `weights` is
// the e-th expert's weight, N*K elements. Accumulated in fp32, rounded once. y is sorted.
struct ExpertForward {
  ExpertRows rows;
  ExpertSide x;
  StridedRows weights;
  TensorView y;
};
// dx[S,K] = dy[S,N] weight[N,K] for each slot; dx is sorted.
struct ExpertBackwardInput {
  ExpertRows rows;
  ExpertSide dy;
  StridedRows weights;
  TensorView dx;
};
// dweight[N,K] (fp32) = dy^T x over the slots of each expert, complete in fp32 before it is stored
// or added. The gradient of an expert without slots is zero.
struct ExpertBackwardWeight {
  ExpertRows rows;
  ExpertSide dy, x;
  StridedRows dweights;
  GradientMode mode = GradientMode::kAssign;
};

// y += the bias of the expert of each slot; y [S,N] is sorted. Row e of `biases` is the e-th
// expert's bias, N elements. The sum is fp32 and rounded once.
struct AddExpertBias {
  ExpertRows rows;
  StridedRows biases;
  TensorView y;
};
// dbias[N] (fp32) = the sum of weight * dy over the slots of each expert, in their order, complete
// in fp32 before it is stored or added. weight (fp32 [R,k]) may be empty: then every weight is 1.
// The gradient of an expert without slots is zero.
struct ExpertBiasGradient {
  ExpertRows rows;
  ExpertSide dy;
  TensorView weight;
  StridedRows dbiases;
  GradientMode mode = GradientMode::kAssign;
};
// dweight (fp32 [R,k]) += the dot product of dy and the bias of the expert, for each slot: the
// share that a bias has in the gradient of the weight with which the result is multiplied.
struct AddBiasShare {
  ExpertRows rows;
  ExpertSide dy;
  StridedRows biases;
  TensorView dweight;
};

// y[r] = the sum over j of weight[r,j] * rows[place[r,j]], in the order of j, in fp32 and rounded
// once. rows [S,C] is sorted, y is [R,C]. weight (fp32 [R,k]) may be empty: then every weight is 1.
struct SumExpertRows {
  TensorView rows, place, weight, y;
};
// The step of a weighted sum's gradient that follows the product of the incoming gradient with the
// experts' down matrices, which gives dh. For each slot, with w its weight: dweight (fp32 [R,k]) =
// the sum of dh * act over the row; dact = w * dh; weighted = w * act. dh, act, dact and weighted
// are sorted, [S,I] of the compute type; products and sums are fp32, rounded once. dact may be dh.
// weighted may be empty.
struct WeighExpertRows {
  TensorView order, weight, dh, act;
  TensorView dweight, dact, weighted;
  // i32; if it is not empty, only the sorted rows from its first number up to its last one are
  // computed, such as those of some neighbouring experts (ExpertRows::offsets).
  TensorView row_range = {};
};

// y[r] = s * x[r] with s = sigmoid(logit[r]): the share of its result that a row has from an expert
// of all rows. x and y are [R,C] and logit is [R,1], all of the compute type. s is computed in fp32
// and rounded to the compute type; the product is rounded once.
struct GateRows {
  TensorView x, logit, y;
};
// dx[r] = s * dy[r]; dlogit[r] = s (1 - s) * the sum of dy * x over the row, in fp32, rounded once.
// s is rounded as in GateRows. dx is [R,C] and dlogit is [R,1].
struct GateRowsBackward {
  TensorView x, logit, dy, dx, dlogit;
};

}  // namespace terrace
