#pragma once

#include <cstdint>
#include <span>

namespace terrace {

// How the next token is drawn, in the order of transformers' generate(): the logits are divided by
// the temperature, then the top_k likeliest ids are kept, then, among these, the likeliest ids
// whose probabilities add up to top_p.
struct ChoiceRule {
  double temperature = 1.0;  // 0: always the likeliest
  std::int64_t top_k = 0;    // 0: all; ids as likely as the last one kept are kept too
  double top_p = 1.0;        // 0 < top_p <= 1; 1: all
};

// The random number of a choice.
struct ChoiceDraw {
  std::uint64_t seed = 0;
  std::uint64_t index = 0;  // of the token in its text
};

// Returns the id that the rule draws from the logits, which are not empty. Throws NotFinite.
std::int32_t choose_id(std::span<const float> logits, const ChoiceRule& rule,
                       const ChoiceDraw& draw);

}  // namespace terrace
