#include "runtime/data/id_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "runtime/data/file_signature.h"

namespace terrace {
namespace {

constexpr std::int64_t kSampleIds = 32 * 1024;
// In ids of 2 or 4 bytes, an integer of 8 bytes begins at a multiple of this.
constexpr std::int64_t kGrain = 4;
constexpr std::size_t kFilesMax = 64;
// Nothing is concluded from fewer ids than these.
constexpr std::int64_t kLeastForWidth = 32;
constexpr std::int64_t kLeastForRange = 1000;
constexpr std::int64_t kRangeShare = 100;  // ids that use less than 1/100 of the vocabulary are odd

// The ids of a file's samples, by their place in integers of 8 bytes.
struct IdSamples {
  std::array<std::int64_t, kGrain> largest = {-1, -1, -1, -1};
  std::array<std::int64_t, kGrain> not_zero = {};
  std::int64_t count = 0;

  std::int64_t largest_id() const { return *std::ranges::max_element(largest); }
};

IdSamples sample(const TokenFile& file) {
  const std::int64_t last = std::max<std::int64_t>(file.tokens - kSampleIds, 0);
  IdSamples samples;
  std::vector<std::int64_t> ids;
  for (const std::int64_t where : {std::int64_t{0}, last / 2, last}) {
    const std::int64_t begin = where / kGrain * kGrain;
    ids.resize(static_cast<std::size_t>(std::min(kSampleIds, file.tokens - begin)));
    read_ids(file, begin, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      samples.largest[i % kGrain] = std::max(samples.largest[i % kGrain], ids[i]);
      samples.not_zero[i % kGrain] += ids[i] != 0 ? 1 : 0;
    }
    samples.count += static_cast<std::int64_t>(ids.size());
  }
  return samples;
}

[[noreturn]] void refuse_width(const TokenFile& file, const std::string& integers,
                               const std::string& remedy) {
  throw ConfigError(
      fmt::format("{}: every other id is 0, as if integers of {} were read as ids of {} bytes",
                  file.path, integers, file.width),
      remedy);
}

// Returns whether the ids at the places are at most `most`, and some other place has larger ids and
// few zeros.
bool is_high_part(const IdSamples& ids, std::initializer_list<std::size_t> places,
                  std::int64_t most) {
  bool has_low = false;
  for (std::size_t place = 0; place < ids.largest.size(); ++place) {
    const bool exceeds = ids.largest.at(place) > most;
    const bool is_high = std::ranges::count(places, place) > 0;
    if (is_high && exceeds) return false;
    const bool is_full = ids.not_zero.at(place) * 2 * kGrain >= ids.count;
    has_low = has_low || (!is_high && exceeds && is_full);
  }
  return has_low;
}

void check_width(const TokenFile& file, const IdSamples& ids, std::int64_t vocabulary) {
  if (ids.count < kLeastForWidth) return;
  const auto from = [&](const char* type) {
    return conversion(fmt::format("np.fromfile('{}', '{}')", file.path, type), file.path);
  };
  if (file.width == 4) {
    if (is_high_part(ids, {1, 3}, 0)) refuse_width(file, "8 bytes", from("<i8"));
    if (is_high_part(ids, {0, 2}, 0)) refuse_width(file, "8 bytes, big-endian", from(">i8"));
    return;
  }
  const std::int64_t most = (vocabulary - 1) >> 16;  // in the upper half of an id of 4 bytes
  if (is_high_part(ids, {2, 3}, 0) && is_high_part(ids, {1, 2, 3}, most)) {
    refuse_width(file, "8 bytes", from("<i8"));
  }
  if (is_high_part(ids, {0, 1, 2}, 0)) refuse_width(file, "8 bytes, big-endian", from(">i8"));
  if (is_high_part(ids, {1, 3}, most)) {
    refuse_width(file, "4 bytes", "use --data-format raw-u32");
  }
  if (is_high_part(ids, {0, 2}, 0)) refuse_width(file, "4 bytes, big-endian", from(">i4"));
}

}  // namespace

std::string check_ids(const std::vector<TokenFile>& files, std::int64_t vocabulary) {
  std::int64_t largest_id = -1;
  std::int64_t count = 0;
  const std::size_t stride = (files.size() + kFilesMax - 1) / kFilesMax;
  for (std::size_t i = 0; i < files.size(); i += stride) {
    const IdSamples ids = sample(files[i]);
    check_width(files[i], ids, vocabulary);
    largest_id = std::max(largest_id, ids.largest_id());
    count += ids.count;
  }
  if (vocabulary == kUnknownVocabulary) return "";
  if (count < kLeastForRange || (largest_id + 1) * kRangeShare >= vocabulary) return "";
  return fmt::format(
      "{}: of {} ids checked, none is above {}, but the vocabulary is {}: they may come from "
      "another tokenizer or have another width than --data-format says",
      files.front().path, count, largest_id, vocabulary);
}

}  // namespace terrace
