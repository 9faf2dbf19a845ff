#pragma once

#include <cstdint>
#include <span>

namespace terrace {

// How the next token is drawn, in the order of transformers' generate(): logits are divided by the
// temperature, then the top_k likeliest are kept, then of these the likeliest whose likelihoods add
// up to top_p.
struct ChoiceRule {
  double temperature = 1.0;  // 0: always the likeliest
  std::int64_t top_k = 0;    // 0: all; ids that are as likely as the last one are kept, too
  double top_p = 1.0;        // 0 < top_p <= 1; 1: all
};

// The random number of a choice.
struct ChoiceDraw {
  std::uint64_t seed = 0;
  std::uint64_t index = 0;  // of the token in its text
};

// The id that the logits choose. Not empty. Throws NotFinite.
std::int32_t choose_id(std::span<const float> logits, const ChoiceRule& rule,
                       const ChoiceDraw& draw);

}  // namespace terrace
