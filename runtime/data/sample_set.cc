#include "runtime/data/sample_set.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "kernels/expert_ops.h"
#include "runtime/data/sample_order.h"

namespace terrace {
namespace {

// Fills `tokens` with the tokens from `begin` on, and `targets` with the tokens one place further.
// Returns how many targets are counted.
std::int64_t fill_piece(const TokenSource& source, std::int64_t begin, bool uses_mask,
                        const SampleRows& rows) {
  std::vector<std::int32_t> window(rows.tokens.size() + 1);
  source.read(begin, window);
  std::copy_n(window.begin(), rows.tokens.size(), rows.tokens.begin());
  std::copy_n(window.begin() + 1, rows.targets.size(), rows.targets.begin());
  if (!uses_mask || !source.has_mask()) return std::ssize(rows.targets);
  std::vector<std::uint8_t> mask(rows.targets.size());
  source.read_mask(begin + 1, mask);
  std::int64_t counted = 0;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    counted += mask[i];
    if (mask[i] == 0) rows.targets[i] = -1;
  }
  return counted;
}

void fill_rest(const SampleRows& rows, std::int32_t target) {
  std::ranges::fill(rows.tokens, 0);
  std::ranges::fill(rows.targets, target);
}

void fill_lengths(const SampleRows& rows) {
  std::ranges::fill(rows.lengths, static_cast<std::int32_t>(rows.tokens.size()));
}

// Records that these rows are a document, the first of which is row `first` of the sequence.
void name_document(const SampleRows& rows, std::size_t first) {
  fill_lengths(rows);
  std::iota(rows.positions.begin(), rows.positions.end(), 0);
  std::ranges::fill(rows.first_keys, static_cast<std::int32_t>(first));
}

class WindowSamples final : public SampleSet {
 public:
  WindowSamples(const TokenRange& range, std::int64_t sequence_length, bool uses_mask)
      : range_(range), length_(sequence_length), uses_mask_(uses_mask) {}

  std::int64_t training_samples() const override {
    return windows_per_epoch(range_.count, length_);
  }
  std::int64_t evaluation_samples() const override {
    return range_.count < 2 ? 0 : (range_.count - 2) / length_ + 1;
  }

  void fill_training(std::uint64_t seed, std::int64_t global_sample,
                     const SampleRows& rows) const override {
    const std::int64_t start = window_start(seed, global_sample, range_.count, length_);
    fill_lengths(rows);
    fill_piece(*range_.source, range_.begin + start, uses_mask_, rows);
  }

  // The last window may be short.
  std::int64_t fill_evaluation(std::int64_t index, const SampleRows& rows) const override {
    const std::int64_t start = index * length_;
    const std::int64_t there = std::clamp<std::int64_t>(range_.count - 1 - start, 0, length_);
    const auto count = static_cast<std::size_t>(there);
    const SampleRows rest = rows.part(count, rows.tokens.size() - count);
    fill_rest(rest, -1);
    fill_lengths(rest);
    fill_lengths(rows.part(0, count));
    if (there == 0) return 0;
    if (count < rows.tokens.size()) {  // the last token, which has no target
      range_.source->read(range_.begin + range_.count - 1, rows.tokens.subspan(count, 1));
    }
    return fill_piece(*range_.source, range_.begin + start, uses_mask_, rows.part(0, count));
  }

  std::uint64_t hash() const override { return uses_mask_ && range_.source->has_mask() ? 1 : 0; }

 private:
  TokenRange range_;
  std::int64_t length_;
  bool uses_mask_;
};

class PackedSamples final : public SampleSet {
 public:
  PackedSamples(const TokenRange& range, const PackingOptions& options)
      : source_(*range.source),
        uses_mask_(options.uses_mask),
        sequences_(source_, range.begin, range.begin + range.count, options) {}

  std::int64_t training_samples() const override { return sequences_.count(); }
  std::int64_t evaluation_samples() const override { return sequences_.count(); }

  void fill_training(std::uint64_t seed, std::int64_t global_sample,
                     const SampleRows& rows) const override {
    fill(sample_of(seed, global_sample, sequences_.count()), rows);
  }
  std::int64_t fill_evaluation(std::int64_t index, const SampleRows& rows) const override {
    if (index < sequences_.count()) return fill(index, rows);
    fill_rest(rows, kPaddingTarget);
    name_document(rows, 0);
    return 0;
  }

  std::uint64_t hash() const override {
    const std::uint64_t of_pieces = sequences_.hash();
    return uses_mask_ ? of_pieces : ~of_pieces;
  }
  const PackingCounts* counts() const override { return &sequences_.counts(); }

 private:
  std::int64_t fill(std::int64_t sequence, const SampleRows& rows) const {
    std::size_t row = 0;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < sequences_.pieces(sequence); ++i) {
      const PackedPiece piece = sequences_.piece(sequence, i);
      const SampleRows part = rows.part(row, static_cast<std::size_t>(piece.rows));
      counted += fill_piece(source_, piece.begin, uses_mask_, part);
      name_document(part, row);
      row += static_cast<std::size_t>(piece.rows);
    }
    const SampleRows rest = rows.part(row, rows.tokens.size() - row);
    fill_rest(rest, kPaddingTarget);
    name_document(rest, row);
    return counted;
  }

  const TokenSource& source_;
  bool uses_mask_;
  PackedSequences sequences_;
};

}  // namespace

SampleRows SampleRows::part(std::size_t first, std::size_t count) const {
  const auto of = [&](std::span<std::int32_t> list) {
    return list.empty() ? list : list.subspan(first, count);
  };
  return {of(tokens), of(targets), of(positions), of(first_keys), of(lengths)};
}

std::unique_ptr<SampleSet> make_window_samples(const TokenRange& range,
                                               std::int64_t sequence_length, bool uses_mask) {
  return std::make_unique<WindowSamples>(range, sequence_length, uses_mask);
}

std::unique_ptr<SampleSet> make_packed_samples(const TokenRange& range,
                                               const PackingOptions& options) {
  return std::make_unique<PackedSamples>(range, options);
}

}  // namespace terrace
