#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/data/document_packing.h"
#include "runtime/data/token_source.h"

namespace terrace {

// Where samples go: lists of a number for each row, one sequence behind the other.
struct SampleRows {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> targets;  // -1: not counted
  // Of the row in its document, and the row of its sequence that its document begins with. Empty
  // where sequences are not divided.
  std::span<std::int32_t> positions = {};
  std::span<std::int32_t> first_keys = {};
  // How many rows the document of the row has; of windows across documents, how many the window has
  // of the text. Empty where nobody asks.
  std::span<std::int32_t> lengths = {};

  // `count` rows from `first` on.
  SampleRows part(std::size_t first, std::size_t count) const;
};

// A range of the tokens of a source.
struct TokenRange {
  const TokenSource* source = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Samples that are made of a range of tokens, each a sequence of rows. Thread-safe.
class SampleSet {
 public:
  virtual ~SampleSet() = default;

  // Samples of an epoch.
  virtual std::int64_t training_samples() const = 0;
  // Samples that cover the range once, from front to back.
  virtual std::int64_t evaluation_samples() const = 0;
  // Sample `global_sample` of a training, counted from 0 over all epochs.
  virtual void fill_training(std::uint64_t seed, std::int64_t global_sample,
                             const SampleRows& rows) const = 0;
  // Sample `index` of evaluation_samples(). Returns how many targets are counted.
  virtual std::int64_t fill_evaluation(std::int64_t index, const SampleRows& rows) const = 0;
  // Of what the samples are besides the tokens: packing and masks; 0 where there is nothing.
  virtual std::uint64_t hash() const = 0;
  // None where samples are windows.
  virtual const PackingCounts* counts() const { return nullptr; }
};

// Windows across documents: `sequence_length` inputs and one token more. Where the source has a
// mask and `uses_mask`, targets that are not trained on are not counted.
std::unique_ptr<SampleSet> make_window_samples(const TokenRange& range,
                                               std::int64_t sequence_length, bool uses_mask);

// Packed sequences, of the whole documents in the range.
std::unique_ptr<SampleSet> make_packed_samples(const TokenRange& range,
                                               const PackingOptions& options);

// Several sets as one: trained on by SampleMix with these weights, evaluated one after the other.
// One set is returned as it is; several need weights only where they are trained on.
std::unique_ptr<SampleSet> join_samples(std::vector<std::unique_ptr<SampleSet>> sets,
                                        std::span<const double> weights);

}  // namespace terrace
