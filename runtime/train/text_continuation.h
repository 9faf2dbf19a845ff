#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/train/choose_id.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/token_sampler.h"

namespace terrace {

enum class SampleEnd : std::uint8_t {
  kLength,     // max_new_tokens
  kEndToken,   // one of the model's or the tokenizer's
  kStopText,   // one of stop_texts
  kPositions,  // the sampler has no more positions
  kStopped,    // ContinuationRules::stop asked for it
};
// "length", "end_token", "stop_text", "positions", "stopped".
std::string_view name_of(SampleEnd end);

// Returns the ids at which a text ends: the tokenizer's end token, and the ids that the files of
// the directories name beside it. A config.json may be older than the tokenizer, so its ids count
// only if the tokenizer's own end token is one of them. Returns none if the tokenizer has no end
// token. Throws CorruptData, IoError.
std::vector<std::int32_t> end_ids_of(const Tokenizer& tokenizer,
                                     const std::vector<std::string>& directories);

// How tokens are chosen, and where a text ends.
struct ContinuationRules {
  std::int64_t max_new_tokens = 200;
  ChoiceRule choice = {};
  std::uint64_t seed = 1234;
  std::uint64_t first_draw = 0;              // the index of the first token's random number
  std::vector<std::string> stop_texts = {};  // none of them empty
  const StopRequest* stop = nullptr;         // ends the text after the token that is being computed
};

// The tokenizer of a text, and the ids at which the text ends.
struct TextVocabulary {
  const Tokenizer& tokenizer;
  const std::vector<std::int32_t>& end_ids;
};

struct Continuation {
  std::int64_t new_tokens = 0;  // all chosen ones, with the end token and stop texts
  SampleEnd end = SampleEnd::kLength;
  double first_seconds = 0;  // up to the first chosen token
  double later_seconds = 0;  // for the other tokens
};

// Continues the text of `ids`, of which there are 1 to sampler.positions(), token by token. Passes
// the new text to `write` as TextStream releases it. Throws NotFinite, what the sampler throws, and
// what `write` throws.
Continuation continue_text(TokenSampler& sampler, const TextVocabulary& vocabulary,
                           std::vector<std::int32_t> ids, const ContinuationRules& rules,
                           FunctionRef<void(std::string_view)> write);

}  // namespace terrace
