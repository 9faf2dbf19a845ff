#include "runtime/train/text_continuation.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "runtime/tokenizer/special_names.h"
#include "runtime/train/text_stream.h"

namespace terrace {
namespace {

// Returns the text that the last id adds to the text of the ids before it.
std::string text_of_last(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  const std::size_t known = std::min<std::size_t>(ids.size(), 2);
  const std::string text = tokenizer.decode(ids.last(known));
  return text.substr(
      std::min(text.size(), tokenizer.decode(ids.last(known).first(known - 1)).size()));
}

// A text that is being made: its ids, and what was written of it so far.
class GrowingText {
 public:
  GrowingText(const TextVocabulary& vocabulary, std::vector<std::int32_t> ids,
              std::vector<std::string> stop_texts, FunctionRef<void(std::string_view)> write)
      : vocabulary_(vocabulary),
        ids_(std::move(ids)),
        stream_(std::move(stop_texts)),
        write_(write) {}

  std::span<const std::int32_t> ids() const { return ids_; }

  // Adds a token. Returns the reason if the text ends with it.
  std::optional<SampleEnd> add(std::int32_t id) {
    ids_.push_back(id);
    if (std::ranges::find(vocabulary_.end_ids, id) != vocabulary_.end_ids.end()) {
      return SampleEnd::kEndToken;
    }
    show(stream_.add(text_of_last(vocabulary_.tokenizer, ids_)));
    if (stream_.is_stopped()) return SampleEnd::kStopText;
    return std::nullopt;
  }
  void finish() { show(stream_.finish()); }

 private:
  void show(const std::string& text) {
    if (!text.empty()) write_(text);
  }

  const TextVocabulary& vocabulary_;
  std::vector<std::int32_t> ids_;
  TextStream stream_;
  FunctionRef<void(std::string_view)> write_;
};

}  // namespace

std::string_view name_of(SampleEnd end) {
  constexpr auto kNames =
      std::to_array<std::string_view>({"length", "end_token", "stop_text", "positions", "stopped"});
  return kNames.at(static_cast<std::size_t>(end));
}

std::vector<std::int32_t> end_ids_of(const Tokenizer& tokenizer,
                                     const std::vector<std::string>& directories) {
  const std::optional<std::int32_t> own = tokenizer.end_token();
  if (!own.has_value()) return {};
  std::vector<std::int32_t> ids = {*own};
  for (const std::string& directory : directories) {
    const EndIds named = read_end_ids(directory);
    const bool has_own = std::ranges::find(named.ids, *own) != named.ids.end();
    if (named.is_from_config && !has_own) continue;
    ids.insert(ids.end(), named.ids.begin(), named.ids.end());
  }
  return ids;
}

Continuation continue_text(TokenSampler& sampler, const TextVocabulary& vocabulary,
                           std::vector<std::int32_t> ids, const ContinuationRules& rules,
                           FunctionRef<void(std::string_view)> write) {
  GrowingText text(vocabulary, std::move(ids), rules.stop_texts, write);
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const auto seconds = [&] { return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9; };
  // The model may have more ids than its tokenizer: the extra ids have no text.
  const auto known_ids = static_cast<std::size_t>(vocabulary.tokenizer.vocabulary());
  Continuation made;
  std::optional<SampleEnd> end;
  while (!end && made.new_tokens < rules.max_new_tokens) {
    if (static_cast<std::int64_t>(text.ids().size()) > sampler.positions()) {
      end = SampleEnd::kPositions;
    } else if (rules.stop != nullptr && rules.stop->is_made()) {
      end = SampleEnd::kStopped;
    } else {
      const auto logits = sampler.logits_after(text.ids()).first(known_ids);
      const std::uint64_t draw = rules.first_draw + static_cast<std::uint64_t>(made.new_tokens);
      end = text.add(choose_id(logits, rules.choice, {rules.seed, draw}));
      if (++made.new_tokens == 1) made.first_seconds = seconds();
    }
  }
  text.finish();
  made.end = end.value_or(SampleEnd::kLength);
  made.later_seconds = seconds() - made.first_seconds;
  return made;
}

}  // namespace terrace
