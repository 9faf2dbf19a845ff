#include "runtime/train/document_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

// How much of the first sample is shown.
constexpr std::size_t kSegments = 6;
constexpr std::size_t kTokens = 100;  // of a segment
// The most samples that are searched for one with a target.
constexpr std::int64_t kSamplesSearched = 1000;

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::int64_t rows_of(const Dataset& data, const PackingCounts& counts) {
  return counts.sequences * data.sequence_length();
}

bool has_report(const Dataset& data) {
  return data.packing_counts() != nullptr || data.uses_mask();
}

// Consecutive tokens, either all trained on or none.
struct Segment {
  bool is_trained = false;
  std::vector<std::int32_t> ids;
};

// Returns the tokens of a sequence, without padding. The first token of a document is no target.
std::vector<Segment> segments_of(const SampleRows& rows) {
  std::vector<Segment> segments;
  const auto add = [&segments](std::int32_t id, bool is_trained, bool is_first) {
    if (segments.empty() || is_first || segments.back().is_trained != is_trained) {
      segments.push_back({is_trained, {}});
    }
    segments.back().ids.push_back(id);
  };
  std::size_t behind = rows.targets.size();  // one past the last target that is counted
  while (behind > 0 && rows.targets[behind - 1] < 0) --behind;
  for (std::size_t r = 0; r < behind; ++r) {
    const bool is_first = r == 0 || (!rows.positions.empty() && rows.positions[r] == 0);
    add(rows.tokens[r], !is_first && rows.targets[r - 1] >= 0, is_first);
    const bool is_last = r + 1 == behind || (!rows.positions.empty() && rows.positions[r + 1] == 0);
    if (is_last && rows.targets[r] >= 0) add(rows.targets[r], true, false);
  }
  return segments;
}

// Returns the text in quotes, on one line, whatever bytes it has.
std::string in_quotes(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    for (const char c : text.substr(0, valid)) {
      if (c == '\n') {
        quoted += "\\n";
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      } else {
        quoted += c;
      }
    }
    if (valid < text.size()) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[valid]));
    }
    text = text.substr(std::min(text.size(), valid + 1));
  }
  return quoted + '"';
}

// Returns whether the tokenizer has all ids: JSON lines may give ids of another tokenizer.
bool has_all_ids(const Tokenizer& tokenizer, const std::vector<Segment>& segments) {
  return std::ranges::all_of(segments, [&](const Segment& segment) {
    return std::ranges::all_of(segment.ids,
                               [&](std::int32_t id) { return id < tokenizer.vocabulary(); });
  });
}

std::string describe_segment(const Segment& segment, const Tokenizer* tokenizer) {
  const std::size_t count = std::min(kTokens, segment.ids.size());
  const auto ids = std::span(segment.ids).first(count);
  const std::string content = tokenizer != nullptr ? in_quotes(tokenizer->decode(ids))
                                                   : fmt::format("ids {}", fmt::join(ids, " "));
  return fmt::format("\n  {}{}{}", segment.is_trained ? "trained on      " : "not trained on  ",
                     content, count < segment.ids.size() ? " ..." : "");
}

std::string describe_first_sample(const Dataset& data, const Tokenizer* tokenizer) {
  const auto length = static_cast<std::size_t>(data.sequence_length());
  std::vector<std::int32_t> numbers(4 * length);
  const auto list = [&](std::size_t i) { return std::span(numbers).subspan(i * length, length); };
  SampleRows rows = {list(0), list(1)};
  if (data.has_documents()) {
    rows.positions = list(2);
    rows.first_keys = list(3);
  }
  const std::int64_t searched = std::min(kSamplesSearched, data.samples_per_epoch());
  std::int64_t sample = 0;
  const auto has_target = [&] {
    data.fill_micro_batch(sample, rows);
    return std::ranges::any_of(rows.targets, [](std::int32_t target) { return target >= 0; });
  };
  while (sample < searched && !has_target()) ++sample;
  if (sample == searched) {
    return fmt::format("\nnone of the first {} samples has a token to train on", searched);
  }
  const std::vector<Segment> segments = segments_of(rows);
  if (tokenizer != nullptr && !has_all_ids(*tokenizer, segments)) tokenizer = nullptr;
  std::string text =
      sample == 0
          ? "\nthe first sample begins:"
          : fmt::format("\nthe first {} samples have no token to train on; the next begins:",
                        sample);
  for (std::size_t i = 0; i < std::min(kSegments, segments.size()); ++i) {
    text += describe_segment(segments[i], tokenizer);
  }
  return text;
}

std::string describe_losses(const PackingCounts& counts) {
  std::vector<std::string> what;
  const auto add = [&what](std::int64_t count, const std::string& text) {
    if (count > 0) what.push_back(text);
  };
  add(counts.too_short,
      fmt::format("{} dropped because they have fewer than two tokens", counts.too_short));
  add(counts.untrained, fmt::format("{} dropped without a token to train on", counts.untrained));
  add(counts.truncated,
      fmt::format("{} truncated ({} tokens cut off)", counts.truncated, counts.truncated_tokens));
  add(counts.split, fmt::format("{} split", counts.split));
  return what.empty() ? "" : fmt::format("\nof the documents: {}", fmt::join(what, ", "));
}

}  // namespace

std::string describe_documents(const Dataset& data, const Tokenizer* tokenizer) {
  if (!has_report(data)) return "";
  std::string text;
  if (const PackingCounts* const counts = data.packing_counts()) {
    const std::int64_t rows = rows_of(data, *counts);
    text = fmt::format(
        "\ndocuments: {} in {} sequences of {}; {:.3g} % of the rows are padding; "
        "{:.3g} % of the tokens are trained on",
        counts->documents, counts->sequences, data.sequence_length(),
        100 * share(rows - counts->rows, rows), 100 * share(counts->trained, counts->rows));
    text += describe_losses(*counts);
  } else {
    text = fmt::format("\nmasks: {:.3g} % of the tokens are trained on",
                       100 * share(data.unmasked_tokens(), data.all_tokens()));
  }
  return text + describe_first_sample(data, tokenizer);
}

std::string documents_json(const Dataset& data) {
  if (!has_report(data)) return "";
  nlohmann::ordered_json json = {{"packing", name_of(data.packing())}};
  const PackingCounts* const counts = data.packing_counts();
  if (counts == nullptr) {
    json["trained_share"] = share(data.unmasked_tokens(), data.all_tokens());
    return json.dump();
  }
  const std::int64_t rows = rows_of(data, *counts);
  json["documents"] = counts->documents;
  json["sequences"] = counts->sequences;
  json["trained_share"] = share(counts->trained, counts->rows);
  json["padding_share"] = share(rows - counts->rows, rows);
  json["too_short"] = counts->too_short;
  json["untrained"] = counts->untrained;
  json["truncated"] = counts->truncated;
  json["truncated_tokens"] = counts->truncated_tokens;
  json["split"] = counts->split;
  return json.dump();
}

}  // namespace terrace
