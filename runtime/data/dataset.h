#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_format.h"
#include "runtime/data/token_source.h"

namespace terrace {

struct DatasetOptions {
  std::vector<std::string> data;
  std::vector<std::string> validation_data;  // empty: the tail of the data
  DataFormat format = DataFormat::kAuto;
  // Used when validation_data is empty and the data's directories have no files for validation; 0:
  // no validation at all.
  double validation_fraction = 0.01;
  std::int64_t vocabulary = 0;
  std::int64_t sequence_length = 0;
  std::uint64_t seed = 0;
};

// Training samples in their order, and the validation split from front to back. Thread-safe.
class Dataset {
 public:
  // Throws ConfigError when the data is too short for one window or the fraction is not in [0, 1).
  explicit Dataset(const DatasetOptions& options);
  // For sources that are not files. `validation` may be null: then the options' fraction is cut
  // off.
  Dataset(const DatasetOptions& options, std::unique_ptr<TokenSource> data,
          std::unique_ptr<TokenSource> validation);

  std::int64_t training_tokens() const { return training_tokens_; }
  std::int64_t validation_tokens() const { return validation_tokens_; }  // 0: no validation
  bool is_text() const { return data_->is_text(); }                      // whose bytes are the ids
  // What became of files in the data's directories, and what is odd about the ids; sentences.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& doubts() const { return doubts_; }
  std::int64_t windows_per_epoch() const { return windows_; }
  // A hash of tokens at places spread over the training data, or over the validation split: of
  // other data it is another, as good as always. None where such a place cannot be read.
  std::optional<std::uint64_t> training_hash() const;
  std::optional<std::uint64_t> validation_hash() const;
  // Reads the validation split whole, which no training step does. Throws as TokenSource::read().
  void check_validation() const;
  // Windows that cover the validation split whole; the last may be short.
  std::int64_t validation_windows() const;

  // Samples first_sample, first_sample + 1, ...: as many as fit `tokens` and `targets`, which are
  // [B, T]. targets are the tokens one place on.
  void fill_micro_batch(std::int64_t first_sample, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const;

  // Validation windows first_window, first_window + 1, ... Where the split has ended, tokens are 0
  // and targets -1: not counted. Returns how many targets are counted.
  std::int64_t fill_validation_batch(std::int64_t first_window, std::span<std::int32_t> tokens,
                                     std::span<std::int32_t> targets) const;

 private:
  Dataset(const DatasetOptions& options, OpenedData data, OpenedData validation);
  void check_shape(std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

  std::unique_ptr<TokenSource> data_;
  std::unique_ptr<TokenSource> validation_;  // null: the tail of data_
  std::int64_t sequence_length_;
  std::uint64_t seed_;
  std::int64_t training_tokens_ = 0;
  std::int64_t validation_begin_ = 0;
  std::int64_t validation_tokens_ = 0;
  std::int64_t windows_ = 0;
  std::vector<std::string> notes_;
  std::vector<std::string> doubts_;
};

}  // namespace terrace
