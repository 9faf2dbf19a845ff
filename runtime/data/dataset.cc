#include "runtime/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"

namespace terrace {
namespace {

OpenedData open_part(const DatasetOptions& options, DataUse use) {
  DataRequest request;
  request.paths = use == DataUse::kTraining ? options.data : options.validation_data;
  request.format = options.format;
  request.vocabulary = options.vocabulary;
  request.use = use;
  request.tokenize = options.tokenize;
  if (request.paths.empty() && use == DataUse::kValidation) return {};
  return open_data(request);
}

DatasetOptions with_packing(DatasetOptions options, const OpenedData& data) {
  if (options.packing) return options;
  options.packing = data.format == DataFormat::kJsonl ? Packing::kDocuments : Packing::kWindows;
  return options;
}

// What validates: data that was given for it, else files of the training data's directories.
std::unique_ptr<TokenSource> choose_validation(const DatasetOptions& options, OpenedData& data,
                                               OpenedData& validation) {
  if (validation.tokens != nullptr) return std::move(validation.tokens);
  return options.validation_fraction > 0 ? std::move(data.validation) : nullptr;
}

// At least two tokens, an input and its target.
std::int64_t tail_tokens(double fraction, std::int64_t tokens) {
  if (!(fraction >= 0.0 && fraction < 1.0)) {
    throw ConfigError(fmt::format("--validation-fraction {} is not in [0, 1)", fraction),
                      "0.01 keeps a hundredth of the data for validation, 0 keeps none");
  }
  if (fraction == 0.0) return 0;
  const auto part = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(tokens)));
  return std::clamp<std::int64_t>(part, std::min<std::int64_t>(2, tokens), tokens);
}

// A hash of `count` tokens from `begin` on, by what lies at some places of them.
std::optional<std::uint64_t> hash_places(const TokenSource& source, std::int64_t begin,
                                         std::int64_t count) {
  constexpr std::int64_t kPlaces = 64;
  constexpr std::int64_t kTokens = 256;
  std::vector<std::int32_t> piece(static_cast<std::size_t>(std::min(kTokens, count)));
  const std::int64_t rest = count - std::ssize(piece);
  StreamingHash hash;
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    try {
      source.read(begin + rest * place / (kPlaces - 1), piece);
    } catch (const Error&) {  // is told when training comes to it
      return std::nullopt;
    }
    hash.add(std::as_bytes(std::span(piece)));
  }
  return hash.value();
}

// With what makes samples of them, where that is not windows alone.
std::optional<std::uint64_t> hash_of(const TokenRange& range, const SampleSet& samples) {
  const std::optional<std::uint64_t> tokens = hash_places(*range.source, range.begin, range.count);
  const std::uint64_t made = samples.hash();
  if (!tokens || made == 0) return tokens;
  const std::uint64_t both[] = {*tokens, made};
  return hash_bytes(std::as_bytes(std::span(both)));
}

// Tokens of the source that its mask has trained on.
std::int64_t count_unmasked(const TokenSource& source) {
  constexpr std::int64_t kPiece = 1 << 16;
  std::int64_t count = 0;
  std::vector<std::uint8_t> piece(kPiece);
  for (std::int64_t at = 0; at < source.count(); at += kPiece) {
    const auto size = static_cast<std::size_t>(std::min(kPiece, source.count() - at));
    source.read_mask(at, std::span(piece).first(size));
    count += std::ranges::count(std::span(piece).first(size), 1);
  }
  return count;
}

void check_mask(std::int64_t unmasked, std::int64_t tokens) {
  if (unmasked == 0) {
    throw ConfigError(
        "--loss-on completion: no token of the data is trained on, as its masks are "
        "all 0 or its completions are empty",
        "correct the masks, or give --loss-on all");
  }
  if (unmasked == tokens) {
    throw ConfigError(
        "--loss-on completion: every token of the data is trained on, though it has "
        "prompts or masks: the prompts are empty or the masks are all 1",
        "correct them, or give --loss-on all");
  }
}

// The end of the documents before the one that has token `tokens`.
std::int64_t documents_before(const TokenSource& source, std::int64_t tokens) {
  std::int64_t found = 0;
  source.visit_documents([&](std::int64_t end) {
    if (end <= tokens) found = end;
  });
  return found;
}

constexpr std::array<std::pair<std::string_view, Packing>, 3> kPackings = {
    {{"none", Packing::kNone}, {"documents", Packing::kDocuments}, {"windows", Packing::kWindows}}};

}  // namespace

Packing parse_packing(std::string_view text) {
  for (const auto& [name, packing] : kPackings) {
    if (name == text) return packing;
  }
  throw ConfigError(fmt::format("--packing {}: unknown", text),
                    "choose none, documents or windows");
}

std::string_view name_of(Packing packing) {
  for (const auto& [name, known] : kPackings) {
    if (known == packing) return name;
  }
  return "";
}

Dataset::Dataset(const DatasetOptions& options)
    : Dataset(options, open_part(options, DataUse::kTraining),
              open_part(options, DataUse::kValidation)) {}

Dataset::Dataset(const DatasetOptions& options, OpenedData data, OpenedData validation)
    : Dataset(with_packing(options, data), std::move(data.tokens),
              choose_validation(options, data, validation)) {
  for (OpenedData* const opened : {&data, &validation}) {
    doubts_.insert(doubts_.end(), opened->doubts.begin(), opened->doubts.end());
    if (opened->left_out.empty()) continue;
    notes_.push_back(
        fmt::format("left out, as they are not called as token files or are test "
                    "sets: {}",
                    some_names(opened->left_out)));
  }
  if (data.validation_files.empty()) return;
  notes_.push_back(fmt::format("{} by their names: {}",
                               options.validation_data.empty() && options.validation_fraction > 0
                                   ? "validate,"
                                   : "left out, as they are for validation",
                               some_names(data.validation_files)));
}

Dataset::Dataset(const DatasetOptions& options, std::unique_ptr<TokenSource> data,
                 std::unique_ptr<TokenSource> validation)
    : data_(std::move(data)),
      validation_(std::move(validation)),
      sequence_length_(options.sequence_length),
      seed_(options.seed),
      packing_(options.packing.value_or(Packing::kWindows)),
      uses_mask_(options.uses_mask) {
  TERRACE_CHECK_LT(0, sequence_length_);
  divide(options);
  make_samples(options);
  if (samples_per_epoch() > 0) return;
  if (packing_ == Packing::kWindows) {
    throw ConfigError(fmt::format("--data has {} tokens for training, and one sample takes {}",
                                  training_tokens(), sequence_length_ + 1),
                      "give more data, a smaller --sequence-length or --validation-fraction 0");
  }
  throw ConfigError(
      fmt::format("--data has {} tokens for training, and no document with a token to train on",
                  training_tokens()),
      "give more documents, a larger --sequence-length where prompts fill it, or "
      "--validation-fraction 0");
}

// What trains and what validates. The tail begins with a document, where documents are kept whole.
void Dataset::divide(const DatasetOptions& options) {
  const std::int64_t tokens = data_->count();
  training_range_ = {data_.get(), 0, tokens};
  if (validation_ != nullptr) {
    validation_range_ = {validation_.get(), 0, validation_->count()};
    if (validation_range_.count >= 2) return;
    throw ConfigError(fmt::format("the validation data has {} tokens", validation_range_.count),
                      "at least 2 are needed");
  }
  const std::int64_t tail = tail_tokens(options.validation_fraction, tokens);
  training_range_.count = tokens - tail;
  if (tail > 0 && packing_ != Packing::kWindows) {
    training_range_.count = documents_before(*data_, tokens - tail);
  }
  validation_range_ = {data_.get(), training_range_.count, tokens - training_range_.count};
}

void Dataset::make_samples(const DatasetOptions& options) {
  for (const TokenSource* const source : {data_.get(), validation_.get()}) {
    if (source == nullptr || packing_ == Packing::kWindows || source->has_documents()) continue;
    throw ConfigError(
        fmt::format("--packing {}: nothing says where the documents of the {} end",
                    name_of(packing_), source == data_.get() ? "data" : "validation data"),
        "put a file of their ends beside the ids (FILE.idx), or give --packing "
        "windows");
  }
  unmasked_tokens_ = uses_mask() ? count_unmasked(*data_) : data_->count();
  if (uses_mask()) check_mask(unmasked_tokens_, data_->count());
  const auto make = [&](const TokenRange& range) {
    if (packing_ == Packing::kWindows) {
      return make_window_samples(range, sequence_length_, options.uses_mask);
    }
    return make_packed_samples(range, {.sequence_length = sequence_length_,
                                       .joins_documents = packing_ == Packing::kDocuments,
                                       .uses_mask = options.uses_mask});
  };
  training_ = make(training_range_);
  if (validation_range_.count > 0) validating_ = make(validation_range_);
}

void Dataset::check_validation() const {
  constexpr std::int64_t kPiece = 1 << 16;
  const auto& [source, begin, count] = validation_range_;
  std::vector<std::int32_t> piece(kPiece);
  for (std::int64_t at = 0; at < count; at += kPiece) {
    const auto size = static_cast<std::size_t>(std::min(kPiece, count - at));
    source->read(begin + at, std::span(piece).first(size));
  }
}

std::optional<std::uint64_t> Dataset::training_hash() const {
  return hash_of(training_range_, *training_);
}

std::optional<std::uint64_t> Dataset::validation_hash() const {
  if (validating_ == nullptr) return hash_places(*data_, validation_range_.begin, 0);
  return hash_of(validation_range_, *validating_);
}

std::int64_t Dataset::validation_samples() const {
  return validating_ == nullptr ? 0 : validating_->evaluation_samples();
}

void Dataset::fill_micro_batch(std::int64_t first_sample, const SampleRows& rows) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  for (std::int64_t s = 0; s < sequences_in(rows); ++s) {
    training_->fill_training(seed_, first_sample + s,
                             rows.part(static_cast<std::size_t>(s) * length, length));
  }
}

std::int64_t Dataset::fill_validation_batch(std::int64_t first_sample,
                                            const SampleRows& rows) const {
  TERRACE_CHECK(validating_ != nullptr);
  const auto length = static_cast<std::size_t>(sequence_length_);
  std::int64_t counted = 0;
  for (std::int64_t s = 0; s < sequences_in(rows); ++s) {
    counted += validating_->fill_evaluation(
        first_sample + s, rows.part(static_cast<std::size_t>(s) * length, length));
  }
  return counted;
}

std::int64_t Dataset::sequences_in(const SampleRows& rows) const {
  TERRACE_CHECK_EQ(rows.tokens.size(), rows.targets.size());
  TERRACE_CHECK_EQ(rows.tokens.size() % static_cast<std::size_t>(sequence_length_), 0U);
  TERRACE_CHECK_EQ(rows.positions.empty(), !has_documents());
  return std::ssize(rows.tokens) / sequence_length_;
}

}  // namespace terrace
