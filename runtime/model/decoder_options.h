#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/rope_options.h"

// What a decoder computes: every choice in which the families differ, and no family.
namespace terrace {

struct NormOptions {
  bool has_mean = false;  // layer norm, with a bias; else root mean square
  float epsilon = 1e-5F;

  friend bool operator==(const NormOptions&, const NormOptions&) = default;
};

enum class FeedForward : std::uint8_t {
  kGelu,      // down(gelu(up(x))), GELU by the tanh formula
  kSiluGate,  // down(silu(gate(x)) * up(x))
};

// In what layers of one model may differ.
struct LayerOptions {
  std::int32_t rope = -1;  // which of DecoderOptions::ropes; -1: positions are not rotated

  friend bool operator==(const LayerOptions&, const LayerOptions&) = default;
};

// What a parameter is in its unit. Where a unit has several matrices of one product, they lie side
// by side in this order: query, key, value; gate, up.
enum class ParameterKind : std::uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,
  kQuery,  // and key and value behind it, where these are stored as one matrix
  kKey,
  kValue,
  kProjection,  // of the attention's result
  kGate,
  kUp,
  kDown,
  kHeadWeight,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kProjectionBias,
  kGateBias,
  kUpBias,
  kDownBias,
  kAttentionNorm,  // before the attention
  kAttentionNormBias,
  kFeedForwardNorm,
  kFeedForwardNormBias,
  kFinalNorm,
  kFinalNormBias,
};
inline constexpr std::size_t kParameterKinds = 23;

// What a parameter is called. {} stands for the layer's number. Empty: there is none.
struct ParameterName {
  std::string name;    // in layouts and checkpoints
  std::string stored;  // in Hugging Face's files; empty: the same
};
using ParameterNames = std::array<ParameterName, kParameterKinds>;

struct DecoderOptions {
  std::string family;  // model_type of config.json
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;
  std::int64_t head_width = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;
  bool tied = false;  // the head's weight is the embedding's
  NormOptions norm;
  FeedForward feed_forward = FeedForward::kSiluGate;
  bool has_position_embedding = false;
  bool has_attention_bias = false;     // of query, key, value and projection
  bool has_feed_forward_bias = false;  // of gate, up and down
  bool stores_qkv_whole = false;       // query, key and value as one matrix
  bool stores_transposed = false;      // matrices of blocks are [in, out] in files
  bool narrows_residual_init = false;  // what joins the residual stream starts smaller
  std::vector<RopeOptions> ropes;
  std::vector<LayerOptions> layer_options;  // one a layer; empty: all as LayerOptions()

  LayerOptions layer(std::int64_t number) const {
    return layer_options.empty() ? LayerOptions()
                                 : layer_options.at(static_cast<std::size_t>(number));
  }
  std::int64_t qkv_columns() const { return (heads + 2 * key_value_heads) * head_width; }
  std::int64_t up_columns() const {
    return feed_forward == FeedForward::kGelu ? intermediate : 2 * intermediate;
  }
  friend bool operator==(const DecoderOptions&, const DecoderOptions&) = default;
};

// One line with all of it, for comparisons between ranks and for people.
std::string describe(const DecoderOptions& options);

}  // namespace terrace
