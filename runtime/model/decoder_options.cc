#include "runtime/model/decoder_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace terrace {
namespace {

std::string describe(const RopeOptions& rope) {
  return fmt::format("rope {} {} {} {} {} {} {} {} {} {} {} [{}] [{}]", static_cast<int>(rope.type),
                     rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                     rope.beta_fast, rope.beta_slow, rope.truncates, rope.original_positions,
                     rope.positions, rope.attention_factor, fmt::join(rope.short_factors, " "),
                     fmt::join(rope.long_factors, " "));
}

}  // namespace

std::string describe(const DecoderOptions& options) {
  const DecoderOptions& o = options;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {}", o.family, o.layers, o.width, o.heads,
                  o.key_value_heads, o.head_width, o.intermediate, o.vocabulary, o.positions);
  text += fmt::format(" norm {} {} {} {}", o.norm.has_mean, o.norm.has_bias, o.norm.epsilon,
                      static_cast<int>(o.norm.form));
  text +=
      fmt::format(" {} {} {} {}", static_cast<int>(o.norm_places), static_cast<int>(o.branch_order),
                  static_cast<int>(o.query_key_norms), static_cast<int>(o.feed_forward));
  for (const bool flag : {o.tied, o.has_position_embedding, o.has_qkv_bias, o.has_projection_bias,
                          o.has_feed_forward_bias, o.rounds_embedding_scale, o.stores_qkv_whole,
                          o.stores_transposed, o.narrows_residual_init}) {
    text += flag ? " 1" : " 0";
  }
  text += fmt::format(" {} {} {} {} {} {} {} {}", o.score_scale, o.score_soft_cap, o.logit_scale,
                      o.logit_soft_cap, o.residual_scale, o.embedding_scale, o.padding_token,
                      o.rotary_width);
  for (const RopeOptions& rope : o.ropes) text += " " + describe(rope);
  if (o.experts.count > 0) {
    text += fmt::format(" experts {} {} {} {} {} {} {}", o.experts.count, o.experts.per_row,
                        o.experts.intermediate, o.experts.rule.normalizes,
                        o.experts.rule.rounds_weights, o.experts.balance_coefficient,
                        o.experts.z_coefficient);
    text += fmt::format(" {} {} {} {} {} {} {}", static_cast<int>(o.experts.rule.scores),
                        o.experts.rule.groups, o.experts.rule.chosen_groups, o.experts.rule.scale,
                        o.experts.has_choice_bias, o.experts.shared_intermediate,
                        o.experts.gates_shared);
  }
  if (o.experts.has_bias) text += " biases";
  if (o.experts.storage == ExpertStorage::kInterleaved) text += " interleaved";
  if (o.has_sinks) text += " sinks";
  for (const LayerOptions& layer : o.layer_options) {
    text += fmt::format(" {}/{}{}", layer.rope, layer.window, layer.has_experts ? "/experts" : "");
  }
  return text;
}

}  // namespace terrace
