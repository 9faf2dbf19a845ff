#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_format.h"
#include "runtime/data/sample_set.h"
#include "runtime/data/token_source.h"
#include "runtime/data/validation_sets.h"

namespace terrace {

// How documents become sequences.
enum class Packing : std::uint8_t {
  kWindows,    // windows of all tokens, across documents
  kDocuments,  // several documents to a sequence, which do not see each other
  kNone,       // one to a sequence
};

// Reads the value of --packing. Throws ConfigError.
Packing parse_packing(std::string_view text);
std::string_view name_of(Packing packing);

struct DatasetOptions {
  std::vector<std::string> data;
  std::vector<ValidationSet> validation_data;  // empty: the tail of the data
  DataFormat format = DataFormat::kAuto;
  // Used when validation_data is empty and the data's directories have no files for validation; 0:
  // no validation at all.
  double validation_fraction = 0.01;
  std::int64_t vocabulary = 0;
  // 0: the length that 95 % of the documents fit, at most `longest_chosen_length`; for windows,
  // `longest_window_length`.
  std::int64_t sequence_length = 0;
  std::int64_t longest_chosen_length = 0;
  std::int64_t longest_window_length = 0;
  std::uint64_t seed = 0;
  std::optional<Packing> packing;  // none: documents for JSONL, and windows for all else
  bool uses_mask = true;           // false: all tokens are trained on, whatever a mask says
  TokenizeFiles tokenize;          // JSONL needs it, and text that is tokenized
  bool tokenizes_text = false;     // else its bytes are the ids
  // One for each of `data`. Samples are then drawn from the paths in these proportions (SampleMix).
  // Empty: the paths are one after the other, and all of it is one epoch.
  std::vector<double> weights;
};

// Training samples in their order, and the validation sets from front to back. Without names there
// is one validation set, or none where no data is for validation. Thread-safe.
class Dataset {
 public:
  // Throws ConfigError when the data is too short for one sample, when the fraction is not in
  // [0, 1), when a mask says that everything or nothing is trained on, and when the data that is
  // named for validation has no target.
  explicit Dataset(const DatasetOptions& options);
  // Takes sources that are not files. `validation` may be null: then the options' fraction of the
  // data is cut off for it.
  Dataset(const DatasetOptions& options, std::unique_ptr<TokenSource> data,
          std::unique_ptr<TokenSource> validation);

  Packing packing() const { return packing_; }
  // Returns whether samples say where their documents are: BatchShape::has_documents.
  bool has_documents() const { return packing_ == Packing::kDocuments; }
  // Returns whether fewer targets than rows may be counted.
  bool has_uncounted() const { return packing_ != Packing::kWindows || uses_mask(); }
  bool uses_mask() const { return uses_mask_ && has_mask_; }
  // Returns the number of tokens of --data, and how many of them are trained on.
  std::int64_t all_tokens() const { return all_tokens_; }
  std::int64_t unmasked_tokens() const { return unmasked_tokens_; }
  std::int64_t sequence_length() const { return sequence_length_; }
  // Returns whether the lengths of documents have decided the sequence length.
  bool chose_sequence_length() const { return chose_sequence_length_; }
  std::int64_t training_tokens() const { return tokens_in(training_ranges_); }
  std::size_t validation_sets() const { return validation_.size(); }
  // Returns the name that --validation-data gives a set; empty where it gives none.
  const std::string& validation_name(std::size_t set) const { return validation_.at(set).name; }
  std::int64_t validation_tokens(std::size_t set = 0) const;    // 0: there is no such set
  bool is_text() const { return sources_.front()->is_text(); }  // whose bytes are the ids
  // Returns whether some of the data, for training or validation, is text whose bytes are the ids;
  // or is not.
  bool has_text() const { return has_source(true); }
  bool has_other_than_text() const { return has_source(false); }
  // Returns sentences that say what became of files in the data's directories, and what is odd
  // about the ids.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& doubts() const { return doubts_; }
  std::int64_t samples_per_epoch() const { return training_->training_samples(); }
  // Returns what became of the documents to train on; null where samples are windows.
  const PackingCounts* packing_counts() const { return training_->counts(); }
  // Returns a hash of tokens at places spread over the training data, or over a validation set, and
  // of how they become samples. Other data has another hash, almost always. None where such a place
  // cannot be read.
  std::optional<std::uint64_t> training_hash() const;
  std::optional<std::uint64_t> validation_hash(std::size_t set = 0) const;
  // Reads the validation sets whole, which no training step does. Throws as TokenSource::read().
  void check_validation() const;
  // Returns the number of samples that cover a validation set whole; 0: there is no such set.
  std::int64_t validation_samples(std::size_t set = 0) const;

  // Fills in samples first_sample, first_sample + 1, ...: as many as fit `rows`, whose lists are
  // [B, T]. Targets are the tokens one place further.
  void fill_micro_batch(std::int64_t first_sample, const SampleRows& rows) const;

  // Fills in samples first_sample, first_sample + 1, ... of a validation set. Behind its end,
  // tokens are 0 and targets negative: not counted. Returns how many targets are counted.
  std::int64_t fill_validation_batch(std::int64_t first_sample, const SampleRows& rows,
                                     std::size_t set = 0) const;

 private:
  // The opened files that the options name.
  struct Opened {
    std::vector<OpenedData> data;        // of each weight
    std::vector<OpenedData> validation;  // of each set that is named
  };
  using SourceList = std::vector<std::unique_ptr<TokenSource>>;
  struct Sources {
    SourceList data;
    std::vector<SourceList> validation;  // of each set; none: the tails of the data
  };
  // The samples that an evaluation goes through.
  struct ValidationSamples {
    std::string name;
    std::vector<TokenRange> ranges;
    std::unique_ptr<SampleSet> samples;
  };

  Dataset(const DatasetOptions& options, Opened opened);
  Dataset(const DatasetOptions& options, Sources sources);
  static Opened open(const DatasetOptions& options);
  static void check_ids_of_all(const Opened& opened);
  static Sources sources_of(const DatasetOptions& options, Opened& opened);
  void choose_sequence_length(const DatasetOptions& options, const Sources& sources);
  bool has_source(bool is_text) const;
  static std::int64_t tokens_in(const std::vector<TokenRange>& ranges);
  void add_notes(const DatasetOptions& options, const Opened& opened);
  void divide(const DatasetOptions& options, const Sources& sources);
  void add_validation(const DatasetOptions& options, const Sources& sources);
  void check_masks();
  void make_samples(const DatasetOptions& options);
  void check_validation_targets(const DatasetOptions& options, const ValidationSamples& set) const;
  std::unique_ptr<SampleSet> samples_of(const TokenRange& range) const;
  std::int64_t sequences_in(const SampleRows& rows) const;

  std::vector<std::unique_ptr<TokenSource>> sources_;  // the data, then the validation data
  std::int64_t sequence_length_;
  bool chose_sequence_length_ = false;
  std::uint64_t seed_;
  Packing packing_;
  bool uses_mask_;
  bool has_mask_ = false;
  std::int64_t all_tokens_ = 0;
  std::int64_t unmasked_tokens_ = 0;
  std::vector<TokenRange> training_ranges_;
  std::unique_ptr<SampleSet> training_;
  std::vector<ValidationSamples> validation_;
  std::vector<std::string> notes_;
  std::vector<std::string> doubts_;
};

}  // namespace terrace
