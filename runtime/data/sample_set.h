#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/data/document_packing.h"
#include "runtime/data/token_source.h"

namespace terrace {

// The lists that samples are written to. Each has a number for each row, one sequence after the
// other.
struct SampleRows {
  std::span<std::int32_t> tokens;
  // -1: not counted; kPaddingTarget (kernels/expert_ops.h): nor is the row, which fills a packed
  // sequence up.
  std::span<std::int32_t> targets;
  // The row's place in its document, and the row of its sequence that its document begins with.
  // Empty where sequences are not divided.
  std::span<std::int32_t> positions = {};
  std::span<std::int32_t> first_keys = {};
  // The number of rows of the row's document; for windows across documents, the number of rows of
  // text in the window. Empty where it is not needed.
  std::span<std::int32_t> lengths = {};

  // Returns `count` rows from `first` on.
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

  // Returns the number of samples of an epoch.
  virtual std::int64_t training_samples() const = 0;
  // Returns the number of samples that cover the range once, from front to back.
  virtual std::int64_t evaluation_samples() const = 0;
  // Fills in sample `global_sample` of a training, counted from 0 over all epochs.
  virtual void fill_training(std::uint64_t seed, std::int64_t global_sample,
                             const SampleRows& rows) const = 0;
  // Fills in sample `index` of evaluation_samples(). Returns how many targets are counted.
  virtual std::int64_t fill_evaluation(std::int64_t index, const SampleRows& rows) const = 0;
  // Returns a hash of the packing and the masks, which decide the samples besides the tokens; 0
  // where there is neither.
  virtual std::uint64_t hash() const = 0;
  // Returns the counts of packing; null where samples are windows.
  virtual const PackingCounts* counts() const { return nullptr; }
};

// Makes samples that are windows across documents: `sequence_length` inputs and one token more.
// Where the source has a mask and `uses_mask`, targets that are not trained on are not counted.
std::unique_ptr<SampleSet> make_window_samples(const TokenRange& range,
                                               std::int64_t sequence_length, bool uses_mask);

// Makes samples that are packed sequences of the whole documents in the range.
std::unique_ptr<SampleSet> make_packed_samples(const TokenRange& range,
                                               const PackingOptions& options);

// Joins several sets into one, which is trained on by SampleMix with these weights, and evaluated
// one set after the other. A single set is returned as it is. Several need weights only where they
// are trained on.
std::unique_ptr<SampleSet> join_samples(std::vector<std::unique_ptr<SampleSet>> sets,
                                        std::span<const double> weights);

}  // namespace terrace
