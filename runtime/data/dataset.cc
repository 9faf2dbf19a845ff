#include "runtime/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/data/sample_order.h"

namespace terrace {
namespace {

OpenedData open_training(const DatasetOptions& options) {
  return open_data({options.data, options.format, options.vocabulary, DataUse::kTraining});
}

OpenedData open_validation(const DatasetOptions& options) {
  if (options.validation_data.empty()) return {};
  return open_data(
      {options.validation_data, options.format, options.vocabulary, DataUse::kValidation});
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

// `window` holds sequence_length + 1 tokens: inputs, and the same one place on.
void split_window(std::span<const std::int32_t> window, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) {
  std::copy_n(window.begin(), tokens.size(), tokens.begin());
  std::copy_n(window.begin() + 1, targets.size(), targets.begin());
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options)
    : Dataset(options, open_training(options), open_validation(options)) {}

Dataset::Dataset(const DatasetOptions& options, OpenedData data, OpenedData validation)
    : Dataset(options, std::move(data.tokens), choose_validation(options, data, validation)) {
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
      seed_(options.seed) {
  TERRACE_CHECK_LT(0, sequence_length_);
  const std::int64_t tokens = data_->count();
  if (validation_ != nullptr) {
    training_tokens_ = tokens;
    validation_tokens_ = validation_->count();
    if (validation_tokens_ < 2) {
      throw ConfigError(fmt::format("the validation data has {} tokens", validation_tokens_),
                        "at least 2 are needed");
    }
  } else {
    validation_tokens_ = tail_tokens(options.validation_fraction, tokens);
    training_tokens_ = validation_begin_ = tokens - validation_tokens_;
  }
  windows_ = terrace::windows_per_epoch(training_tokens_, sequence_length_);
  if (windows_ < 1) {
    throw ConfigError(fmt::format("--data has {} tokens for training, and one sample takes {}",
                                  training_tokens_, sequence_length_ + 1),
                      "give more data, a smaller --sequence-length or --validation-fraction 0");
  }
}

void Dataset::check_validation() const {
  constexpr std::int64_t kPiece = 1 << 16;
  const TokenSource& source = validation_ != nullptr ? *validation_ : *data_;
  std::vector<std::int32_t> piece(kPiece);
  for (std::int64_t at = 0; at < validation_tokens_; at += kPiece) {
    const auto size = static_cast<std::size_t>(std::min(kPiece, validation_tokens_ - at));
    source.read(validation_begin_ + at, std::span(piece).first(size));
  }
}

std::optional<std::uint64_t> Dataset::training_hash() const {
  return hash_places(*data_, 0, training_tokens_);
}

std::optional<std::uint64_t> Dataset::validation_hash() const {
  return hash_places(validation_ != nullptr ? *validation_ : *data_, validation_begin_,
                     validation_tokens_);
}

std::int64_t Dataset::validation_windows() const {
  if (validation_tokens_ < 2) return 0;
  return (validation_tokens_ - 2) / sequence_length_ + 1;
}

void Dataset::fill_micro_batch(std::int64_t first_sample, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) const {
  check_shape(tokens, targets);
  const auto length = static_cast<std::size_t>(sequence_length_);
  std::vector<std::int32_t> window(length + 1);
  for (std::size_t row = 0; row < tokens.size() / length; ++row) {
    const std::int64_t sample = first_sample + static_cast<std::int64_t>(row);
    data_->read(window_start(seed_, sample, training_tokens_, sequence_length_), window);
    split_window(window, tokens.subspan(row * length, length),
                 targets.subspan(row * length, length));
  }
}

std::int64_t Dataset::fill_validation_batch(std::int64_t first_window,
                                            std::span<std::int32_t> tokens,
                                            std::span<std::int32_t> targets) const {
  check_shape(tokens, targets);
  const TokenSource& source = validation_ != nullptr ? *validation_ : *data_;
  const auto length = static_cast<std::size_t>(sequence_length_);
  std::vector<std::int32_t> window(length + 1);
  std::int64_t counted = 0;
  for (std::size_t row = 0; row < tokens.size() / length; ++row) {
    const std::int64_t start = (first_window + static_cast<std::int64_t>(row)) * sequence_length_;
    const std::int64_t there =
        std::clamp<std::int64_t>(validation_tokens_ - start, 0, sequence_length_ + 1);
    const auto part = std::span(window).first(static_cast<std::size_t>(there));
    if (there > 0) source.read(validation_begin_ + start, part);
    std::fill(window.begin() + there, window.end(), -1);
    split_window(window, tokens.subspan(row * length, length),
                 targets.subspan(row * length, length));
    counted += std::max<std::int64_t>(there - 1, 0);
  }
  std::replace(tokens.begin(), tokens.end(), -1, 0);
  return counted;
}

void Dataset::check_shape(std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  TERRACE_CHECK_EQ(tokens.size(), targets.size());
  TERRACE_CHECK_EQ(tokens.size() % static_cast<std::size_t>(sequence_length_), 0U);
}

}  // namespace terrace
