#include "runtime/train/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/model/rope_table.h"
#include "runtime/tokenizer/document_tokens.h"
#include "runtime/train/held_parameters.h"
#include "runtime/train/tiered_parameters.h"
#include "runtime/train/token_sampler.h"

namespace terrace {
namespace {

// Returns the ids of the prompt as the beginning of a document.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<std::int32_t> ids;
  encode_beginning(tokenizer, prompt, ids);
  if (ids.empty()) {
    throw ConfigError(fmt::format("--prompt {}: the tokenizer turns it into no tokens", prompt),
                      "give another text to continue");
  }
  return ids;
}

bool has_learned_positions(const ModelConfig& config) {
  return parameter_layout(config).front().find(ParameterKind::kPositionEmbedding) != nullptr;
}

// Returns the largest number of new tokens for which keys and values fit in memory; less than one
// where not even one fits.
std::int64_t fitting_tokens(TokenSampler::Shape shape, std::int64_t prompt_tokens,
                            std::size_t usable) {
  std::int64_t fits = 0;
  std::int64_t fails = shape.positions - prompt_tokens + 1;
  while (fails - fits > 1) {
    const std::int64_t tried = fits + (fails - fits) / 2;
    shape.positions = prompt_tokens + tried - 1;
    (TokenSampler::memory_bytes(shape) <= usable ? fits : fails) = tried;
  }
  return fits;
}

void check_text_fits(const TokenSampler::Shape& shape, std::int64_t prompt_tokens) {
  const std::size_t usable = read_host_limits().usable_bytes();
  const std::size_t needed = TokenSampler::memory_bytes(shape);
  if (needed <= usable) return;
  const std::int64_t fits = fitting_tokens(shape, prompt_tokens, usable);
  throw OutOfMemory(
      fmt::format("{} needs {} of memory for a text of {} tokens (for its weights and the keys and "
                  "values of the text), but only {} can be used",
                  shape.config.name, format_size(needed), shape.positions + 1, format_size(usable)),
      fits > 0 ? fmt::format("give --max-new-tokens {} or less", fits)
               : "give a shorter prompt, or sample on a machine with more memory");
}

// Returns the length of the longest text that is computed anew in one pass: the prompt, or the
// whole text where the rotary embeddings change with the text's length.
std::int64_t rows_of_pass(const TokenSampler::Shape& shape, std::int64_t prompt_tokens) {
  const bool changes = std::ranges::any_of(shape.config.ropes, depends_on_length);
  return changes ? shape.positions : prompt_tokens;
}

// Returns a shape with room for the prompt and as many tokens as are asked for, or as the model has
// positions.
TokenSampler::Shape shape_of(const SampledModel& model, std::int64_t prompt_tokens,
                             const SampleOptions& options) {
  TokenSampler::Shape shape = {.config = model.config(), .compute_type = model.compute_type()};
  shape.rope_of_text = true;
  shape.threads = options.threads > 0 ? options.threads : read_host_limits().usable_cpus();
  shape.positions = prompt_tokens + options.max_new_tokens - 1;
  if (has_learned_positions(shape.config)) {
    if (prompt_tokens > shape.config.positions) {
      throw ConfigError(fmt::format("the prompt has {} tokens, but {} has learned only {} "
                                    "positions",
                                    prompt_tokens, shape.config.name, shape.config.positions),
                        "give a shorter prompt");
    }
    shape.positions = std::min(shape.positions, shape.config.positions);
  }
  if (options.tiers) {
    shape.rows_of_pass = rows_of_pass(shape, prompt_tokens);
    shape.reads_experts = shape.config.experts.count > 0 && !has_learned_positions(shape.config);
  } else {
    check_text_fits(shape, prompt_tokens);
  }
  return shape;
}

std::unique_ptr<TieredParameters> tiered_parameters(const SampledModel& model,
                                                    const TokenSampler::Shape& shape,
                                                    const TierOptions& tiers, Log& log) {
  const TokenSampler::Memory beside = TokenSampler::memory_beside(shape);
  TieredParameters::Options options = {.name = shape.config.name,
                                       .layout = frozen_layout(shape.config),
                                       .tied = shape.config.tied,
                                       .reads_experts = shape.reads_experts,
                                       .type = shape.compute_type,
                                       .tiers = tiers,
                                       .threads = shape.threads,
                                       .key_value_bytes = beside.key_values,
                                       .computation_bytes = beside.computation};
  auto parameters = std::make_unique<TieredParameters>(options, log);
  log.info(to_text(parameters->ledger()));
  parameters->fill([&](StateField /*parameters alone*/, std::int32_t unit, std::int64_t begin,
                       std::span<float> out) {
    const UnitLayout& layout = options.layout.at(static_cast<std::size_t>(unit));
    for_each_tensor_part(layout, begin, out,
                         [&](const ParameterTensor& tensor, std::int64_t first,
                             std::span<float> part) { model.read(layout, tensor, first, part); });
  });
  return parameters;
}

// A sampler, and its parameters where these are in tiers.
struct MadeSampler {
  std::unique_ptr<TokenSampler> sampler;
  const TieredParameters* tiered = nullptr;  // owned by the sampler
};

MadeSampler make_sampler(const SampledModel& model, const TokenSampler::Shape& shape,
                         const SampleOptions& options, Log& log) {
  if (options.tiers) {
    auto parameters = tiered_parameters(model, shape, *options.tiers, log);
    const TieredParameters* const tiered = parameters.get();
    return {std::make_unique<TokenSampler>(std::move(parameters), shape), tiered};
  }
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) { model.read(unit, tensor, begin, out); };
  return {std::make_unique<TokenSampler>(shape, fetch)};
}

// Warns where the text has gone beyond the length that the model was made for.
void warn_of_positions(const ModelConfig& config, const SampleOutcome& outcome, Log& log) {
  if (outcome.end == SampleEnd::kPositions) {
    log.warning(fmt::format("the text ends after {} new tokens: {} has learned only {} positions",
                            outcome.new_tokens, config.name, config.positions));
    return;
  }
  // The last token needs no position.
  const std::int64_t tokens = outcome.prompt_tokens + outcome.new_tokens;
  if (tokens - 1 <= config.positions) return;
  log.warning(
      fmt::format("the text has {} tokens, but {} was made for {} (max_position_embeddings): the "
                  "text after them may make little sense",
                  tokens, config.name, config.positions));
}

}  // namespace

SampleOutcome sample_text(const SampleOptions& options, FunctionRef<void(std::string_view)> write,
                          Log& log) {
  const SampledModel model(options.source, log);
  const std::vector<std::int32_t> ids = prompt_ids(model.tokenizer(), options.prompt);
  SampleOutcome outcome;
  outcome.prompt_tokens = static_cast<std::int64_t>(ids.size());
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const auto [sampler, tiered] =
      make_sampler(model, shape_of(model, outcome.prompt_tokens, options), options, log);
  outcome.load_seconds = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
  write(options.prompt);
  const Continuation made = continue_text(*sampler, {model.tokenizer(), model.end_ids()}, ids,
                                          {.max_new_tokens = options.max_new_tokens,
                                           .choice = options.choice,
                                           .seed = options.seed,
                                           .stop_texts = options.stop_texts},
                                          write);
  if (tiered != nullptr) outcome.read_bytes_of_pass = tiered->bytes_read();
  outcome.new_tokens = made.new_tokens;
  outcome.end = made.end;
  outcome.prompt_seconds = made.first_seconds;
  outcome.token_seconds = made.later_seconds;
  warn_of_positions(model.config(), outcome, log);
  return outcome;
}

}  // namespace terrace
