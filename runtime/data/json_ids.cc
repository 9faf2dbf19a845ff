#include "runtime/data/json_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace {
namespace {

constexpr std::int32_t kNotTrained = -100;  // of "labels"
// Lists of 0 and 1 that say which ids are trained on. Several of them may be there: an id counts
// if it counts in all.
constexpr auto kMasks = std::to_array<std::string_view>(
    {"loss_mask", "completion_mask", "assistant_masks", "assistant_mask"});
constexpr auto kLengths = std::to_array<std::string_view>({"seq_lengths", "seq_lens"});
// Keys that cut the ids into sequences in other ways.
constexpr auto kUnreadCuts =
    std::to_array<std::string_view>({"cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k",
                                     "sequence_ids", "segment_ids", "document_ids"});
constexpr const char* kUseLengths =
    "give \"seq_lengths\", a list of the lengths of the sequences, or give each sequence a line of "
    "its own";

// Reads a list that has a number for each id.
std::vector<std::int64_t> numbers_beside(const JsonLine& line, std::string_view key,
                                         std::size_t ids, const JsonNumbers& range) {
  std::vector<std::int64_t> numbers = line.numbers(key, range);
  if (numbers.size() == ids) return numbers;
  throw line.wrong(key,
                   fmt::format("has {} numbers, but \"input_ids\" has {}", numbers.size(), ids),
                   "give one number for each id");
}

constexpr JsonNumbers kMaskRange = {
    .low = 0, .high = 2, .takes_bool = true, .remedy = "a mask consists of 0 and 1"};

// Adds what "labels" says to a mask, which may be empty: labels that are all trained on need none.
void take_labels(const JsonLine& line, const JsonDocument& document,
                 std::vector<std::uint8_t>& mask) {
  const JsonNumbers range = {.low = kNotTrained,
                             .high = std::numeric_limits<std::int32_t>::max(),
                             .remedy = "a label is the id at the same place, or -100"};
  const std::vector<std::int64_t> labels =
      numbers_beside(line, "labels", document.ids.size(), range);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == document.ids[i]) continue;
    if (labels[i] != kNotTrained) {
      throw line.wrong(
          "labels",
          fmt::format("has {} at {}, where \"input_ids\" has {}", labels[i], i, document.ids[i]),
          "a label is the id at the same place, or -100 where it is not trained on: "
          "labels that are moved by one place must be moved back");
    }
    if (mask.empty()) mask.assign(labels.size(), 1);
    mask[i] = 0;
  }
}

std::vector<std::uint8_t> mask_of(const JsonLine& line, const JsonDocument& document) {
  std::vector<std::uint8_t> mask;
  for (const std::string_view key : kMasks) {
    if (!line.has(key)) continue;
    const auto one = numbers_beside(line, key, document.ids.size(), kMaskRange);
    if (mask.empty()) mask.assign(one.size(), 1);
    for (std::size_t i = 0; i < one.size(); ++i) mask[i] &= static_cast<std::uint8_t>(one[i]);
  }
  if (line.has("labels")) take_labels(line, document, mask);
  return mask;
}

// Returns the first id and one past the last id that "attention_mask" keeps: it leaves out padding
// at both ends.
std::pair<std::size_t, std::size_t> kept_range(const JsonLine& line, std::size_t ids) {
  constexpr std::string_view kKey = "attention_mask";
  if (!line.has(kKey)) return {0, ids};
  const std::vector<std::int64_t> kept = numbers_beside(line, kKey, ids, kMaskRange);
  const auto begin = std::ranges::find(kept, 1);
  auto end = kept.end();
  while (end != begin && *(end - 1) == 0) --end;
  const auto hole = std::find(begin, end, 0);
  if (hole != end) {
    throw line.wrong(
        kKey, fmt::format("has 0 at {}, between ids that it keeps", hole - kept.begin()),
        "it may leave out padding at the beginning and at the end: leave the other ids out of "
        "\"input_ids\", or mask them with \"loss_mask\"");
  }
  return {begin - kept.begin(), end - kept.begin()};
}

// Returns the ends of the sequences that "position_ids" counts, for the ids [begin, end).
std::vector<std::size_t> ends_by_positions(const JsonLine& line, std::size_t ids, std::size_t begin,
                                           std::size_t end) {
  constexpr std::string_view kKey = "position_ids";
  const JsonNumbers range = {.low = 0,
                             .high = std::numeric_limits<std::int32_t>::max(),
                             .remedy = "positions count from 0 in each sequence"};
  const std::vector<std::int64_t> positions = numbers_beside(line, kKey, ids, range);
  std::vector<std::size_t> ends;
  for (std::size_t i = begin; i < end; ++i) {
    const bool is_start = positions[i] == 0;
    if (is_start && i > begin) ends.push_back(i - begin);
    if (is_start || (i > begin && positions[i] == positions[i - 1] + 1)) continue;
    throw line.wrong(kKey,
                     i == begin
                         ? fmt::format("begins with {}", positions[i])
                         : fmt::format("has {} at {}, after {}", positions[i], i, positions[i - 1]),
                     "positions other than 0, 1, 2, ... in each sequence are not built: leave the "
                     "key out if the ids are one sequence");
  }
  ends.push_back(end - begin);
  return ends;
}

std::vector<std::size_t> ends_by_lengths(const JsonLine& line, std::string_view key,
                                         std::size_t ids) {
  const JsonNumbers range = {.low = 1,
                             .high = std::numeric_limits<std::int32_t>::max(),
                             .remedy = "give the length of each sequence"};
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (const std::int64_t length : line.numbers(key, range)) {
    end += static_cast<std::size_t>(length);
    ends.push_back(end);
  }
  if (end == ids) return ends;
  throw line.wrong(key,
                   fmt::format("adds up to {}, but there are {} ids without padding", end, ids),
                   "give the length of each sequence");
}

// Cuts the ids [begin, end) of the line into the sequences that its keys tell.
void cut(const JsonLine& line, std::size_t begin, std::size_t end, JsonDocument& document) {
  for (const std::string_view key : kUnreadCuts) {
    if (line.has(key)) throw line.wrong(key, "is not read", kUseLengths);
  }
  if (line.has("position_ids")) {
    document.ends = ends_by_positions(line, document.ids.size(), begin, end);
  }
  for (const std::string_view key : kLengths) {
    if (!line.has(key)) continue;
    std::vector<std::size_t> ends = ends_by_lengths(line, key, end - begin);
    if (!document.ends.empty() && ends != document.ends) {
      throw line.wrong(key, "tells other sequences than another key of the line", kUseLengths);
    }
    document.ends = std::move(ends);
  }
}

template <typename T>
void keep_range(std::vector<T>& list, std::size_t begin, std::size_t end) {
  if (list.empty()) return;
  list = std::vector<T>(list.begin() + static_cast<std::ptrdiff_t>(begin),
                        list.begin() + static_cast<std::ptrdiff_t>(end));
}

}  // namespace

JsonDocument read_json_ids(const JsonLine& line, std::int64_t vocabulary) {
  JsonDocument document;
  document.kind = JsonDocument::Kind::kIds;
  const JsonNumbers range = {.low = 0, .high = vocabulary, .remedy = "use the model's own ids"};
  const std::vector<std::int64_t> ids = line.numbers("input_ids", range);
  document.ids.assign(ids.begin(), ids.end());
  document.mask = mask_of(line, document);
  const auto [begin, end] = kept_range(line, ids.size());
  cut(line, begin, end, document);
  keep_range(document.ids, begin, end);
  keep_range(document.mask, begin, end);
  return document;
}

}  // namespace terrace
