#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/rope_options.h"

// The options that decide what a decoder computes: every choice in which the families differ.
// Nothing here depends on a particular family.
namespace terrace {

struct NormOptions {
  bool has_mean = false;  // layer norm; else root mean square
  bool has_bias = true;   // layer norms only: the others have none
  float epsilon = 1e-5F;
  RmsNormForm form = RmsNormForm::kRoundThenMultiply;  // weights of kMultiplyByOnePlus start at 0

  friend bool operator==(const NormOptions&, const NormOptions&) = default;
};

// Where the norms of a block stand.
enum class NormPlaces : std::uint8_t {
  kBefore,  // x + attention(norm(x)), then x + feed_forward(norm(x))
  kAfter,   // x + norm(attention(x)), then x + norm(feed_forward(x))
  kAround,  // both: x + norm(attention(norm(x))), ...
};

// How the two branches of a block follow each other.
enum class BranchOrder : std::uint8_t {
  kSequential,  // the feed-forward reads what the attention has been added to
  kParallel,    // x + (attention(norm(x)) + feed_forward(norm(x))), of one norm before both
};

// Norms of queries and keys, before they are rotated.
enum class QueryKeyNorms : std::uint8_t {
  kNone,
  kEachHead,    // each head by itself; all share the weight of a head's width
  kWholeWidth,  // all heads together
};

enum class FeedForward : std::uint8_t {
  kGelu,         // down(gelu(up(x))), GELU by the tanh formula
  kSiluGate,     // down(silu(gate(x)) * up(x))
  kGeluGate,     // down(gelu(gate(x)) * up(x))
  kClampedGate,  // GateActivation::kClampedGate of gate and up; of experts alone
};
// Returns the activation of a gated feed-forward.
constexpr GateActivation gate_activation(FeedForward kind) {
  if (kind == FeedForward::kClampedGate) return GateActivation::kClampedGate;
  return kind == FeedForward::kSiluGate ? GateActivation::kSilu : GateActivation::kGeluTanh;
}

// How files store the matrices of a layer's experts.
enum class ExpertStorage : std::uint8_t {
  kEach,  // a tensor for each matrix, or one for all of a kind if their stored name says so
  // One tensor for gate and up of all experts, [experts, width, 2 intermediate], in which the
  // columns of gate and up alternate, and one for down, [experts, intermediate, width]. The biases
  // of gate and up are one tensor, too, in which they alternate.
  kInterleaved,
};

// The experts of a layer. A router chooses some of them for each row: its logits are x weight^T, in
// the compute type (kernels/expert_ops.h). An expert is a gated feed-forward.
struct ExpertOptions {
  std::int64_t count = 0;         // 0: no layer of the model has experts
  std::int64_t per_row = 0;       // how many are chosen
  std::int64_t intermediate = 0;  // of each expert
  ExpertRule rule;                // how logits become weights
  bool has_bias = false;          // of the router, and of each expert's gate, up and down
  ExpertStorage storage = ExpertStorage::kEach;
  // The experts of a row are chosen by scores with a bias, which does not train (ChooseExperts).
  bool has_choice_bias = false;
  // The size of an expert that all rows have, beside the chosen ones: their results are added.
  std::int64_t shared_intermediate = 0;  // 0: there is none
  bool gates_shared = false;  // its result is times the sigmoid of a linear layer of one column
  // The coefficients, in the loss that is trained on, of the loss that balances the experts and of
  // the routers' z-loss (RouterSlopes in kernels/expert_ops.h). 0: the loss is not in it.
  double balance_coefficient = 0;
  double z_coefficient = 0;

  bool has_losses() const { return balance_coefficient != 0 || z_coefficient != 0; }
  friend bool operator==(const ExpertOptions&, const ExpertOptions&) = default;
};

// The options in which the layers of one model may differ.
struct LayerOptions {
  std::int32_t rope = -1;    // which of DecoderOptions::ropes; -1: positions are not rotated
  std::int64_t window = 0;   // a query sees the last `window` keys up to its own; 0: all
  bool has_experts = false;  // experts take the place of the feed-forward

  friend bool operator==(const LayerOptions&, const LayerOptions&) = default;
};

// The role of a parameter in its unit. Where a unit has several matrices of one product, they lie
// side by side in this order: query, key, value; gate, up.
enum class ParameterKind : std::uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,
  kQuery,  // and key and value after it, where these are stored as one matrix
  kKey,
  kValue,
  kProjection,  // of the attention's result
  kGate,
  kUp,
  kDown,
  kRouter,      // [experts, width]
  kShare,       // [1, width]: the sigmoid of its product is a row's share of the expert of all rows
  kExpertGate,  // of each expert, and up and down after it
  kExpertUp,
  kExpertDown,
  kHeadWeight,
  kQueryA,  // of adapters (adapter.h), in the order of the weights that they are added to
  kKeyA,
  kValueA,
  kProjectionA,
  kGateA,
  kUpA,
  kDownA,
  kQueryB,
  kKeyB,
  kValueB,
  kProjectionB,
  kGateB,
  kUpB,
  kDownB,
  kQueryMagnitude,
  kKeyMagnitude,
  kValueMagnitude,
  kProjectionMagnitude,
  kGateMagnitude,
  kUpMagnitude,
  kDownMagnitude,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kProjectionBias,
  kGateBias,
  kUpBias,
  kDownBias,
  kRouterBias,
  kChoiceBias,      // of the choice of experts
  kExpertGateBias,  // of all experts of a layer, one a row; and up and down after it
  kExpertUpBias,
  kExpertDownBias,
  kSinks,  // of attention: a number for each head
  kQueryNorm,
  kKeyNorm,
  kAttentionNorm,  // before the attention
  kAttentionNormBias,
  kAttentionOutNorm,  // after it
  kFeedForwardNorm,
  kFeedForwardNormBias,
  kFeedForwardOutNorm,
  kFinalNorm,
  kFinalNormBias,
};
inline constexpr std::size_t kParameterKinds = 59;
// Returns whether each expert of a layer has a parameter of this kind.
constexpr bool is_of_expert(ParameterKind kind) {
  return ParameterKind::kExpertGate <= kind && kind <= ParameterKind::kExpertDown;
}

// The names of a parameter. {} stands for the layer's number, and a second {}, in the name of an
// expert's parameter, for the expert's number. An empty name means that there is no such parameter.
struct ParameterName {
  std::string name;  // in layouts and checkpoints
  // In Hugging Face's files; empty if it is the same. Parameters with one stored name are rows of
  // one tensor there, in the order of their kinds. A stored name of experts' parameters without the
  // second {} is one tensor of all experts: a matrix for each of them, one after the other.
  std::string stored;
};
using ParameterNames = std::array<ParameterName, kParameterKinds>;

struct DecoderOptions {
  std::string family;  // model_type of config.json
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;
  std::int64_t head_width = 0;
  std::int64_t intermediate = 0;  // of a feed-forward that is not one of several experts
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;
  bool tied = false;  // the head's weight is the embedding's
  NormOptions norm;
  NormPlaces norm_places = NormPlaces::kBefore;  // of sequential branches
  BranchOrder branch_order = BranchOrder::kSequential;
  QueryKeyNorms query_key_norms = QueryKeyNorms::kNone;
  FeedForward feed_forward = FeedForward::kSiluGate;
  bool has_position_embedding = false;
  bool has_qkv_bias = false;  // of query, key and value
  bool has_projection_bias = false;
  bool has_sinks = false;              // attention sinks (AttentionRule)
  bool has_feed_forward_bias = false;  // of gate, up and down
  float score_scale = 0;               // 0: 1 / sqrt(head_width)
  float score_soft_cap = 0;            // 0: none; the same for logit_soft_cap
  float logit_scale = 1;
  float logit_soft_cap = 0;
  float residual_scale = 1;             // scales every addition to the residual stream
  float embedding_scale = 1;            // of the tokens' rows
  bool rounds_embedding_scale = false;  // to the compute type
  std::int64_t padding_token = -1;      // its row has no gradient from inputs; -1: there is none
  std::int64_t rotary_width = 0;        // the number of a head's elements that are rotated; 0: all
  bool stores_qkv_whole = false;        // query, key and value as one parameter, of equal parts
  bool stores_transposed = false;       // matrices of blocks are [in, out] in files
  bool narrows_residual_init = false;   // matrices that write to the residual stream start smaller
  ExpertOptions experts;
  std::vector<RopeOptions> ropes;
  std::vector<LayerOptions> layer_options;  // one a layer; empty: all as LayerOptions()

  LayerOptions layer(std::int64_t number) const {
    return layer_options.empty() ? LayerOptions()
                                 : layer_options.at(static_cast<std::size_t>(number));
  }
  // Returns how many layers have experts.
  std::int64_t expert_layers() const {
    return std::ranges::count_if(layer_options, &LayerOptions::has_experts);
  }
  std::int64_t qkv_columns() const { return (heads + 2 * key_value_heads) * head_width; }
  std::int64_t up_columns() const {
    return feed_forward == FeedForward::kGelu ? intermediate : 2 * intermediate;
  }
  std::int64_t rotated_width() const { return rotary_width == 0 ? head_width : rotary_width; }
  friend bool operator==(const DecoderOptions&, const DecoderOptions&) = default;
};

// Returns one line with all of it, for comparisons between ranks and for people.
std::string describe(const DecoderOptions& options);

}  // namespace terrace
