#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "runtime/config/train_options.h"
#include "runtime/train/choose_id.h"
#include "runtime/train/sampled_model.h"
#include "runtime/train/text_continuation.h"

// Continues a text with a trained model, token by token. docs/sampling.md describes it.
namespace terrace {

struct SampleOptions {
  SampledModel::Source source;
  std::string prompt;  // not empty
  std::int64_t max_new_tokens = 200;
  ChoiceRule choice;
  std::uint64_t seed = 1234;
  std::vector<std::string> stop_texts = {};  // none of them empty
  int threads = 0;                           // 0: as many as the process may use
  // Where parameters live; unset: all in memory. Places, budgets, drives and prefetch work as in
  // training.
  std::optional<TierOptions> tiers = {};
};

struct SampleOutcome {
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;  // all chosen ones, with the end token and stop texts
  SampleEnd end = SampleEnd::kLength;
  double prompt_seconds = 0;  // up to the first chosen token, without loading
  double token_seconds = 0;   // for the other tokens
  double load_seconds = 0;    // until all parameters were in place
  // Bytes of parameters that each pass reads from drives; the prompt is one pass, and each token
  // after the first one more. In a model with experts this is the number of the last pass, because
  // a pass reads the experts that its tokens have chosen.
  std::size_t read_bytes_of_pass = 0;
};

// Passes the prompt to `write` once the model is in memory, and then the new text as TextStream
// releases it. Ends early at an end token of the model or the tokenizer, at a stop text, and where
// the model has no more learned positions, which it warns of. The tokenizer's begin token, if it
// has one, stands before the prompt. Throws ConfigError as SampledModel does and for a prompt
// without tokens or with more tokens than the model has positions, OutOfMemory where model, keys
// and values do not fit in memory, CorruptData, NotFinite, IoError, and what `write` throws.
SampleOutcome sample_text(const SampleOptions& options, FunctionRef<void(std::string_view)> write,
                          Log& log);

}  // namespace terrace
