#include "runtime/data/document_packing.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace terrace {

void PackingCounts::add(const PackingCounts& more) {
  documents += more.documents;
  sequences += more.sequences;
  rows += more.rows;
  trained += more.trained;
  split += more.split;
  truncated += more.truncated;
  truncated_tokens += more.truncated_tokens;
  too_short += more.too_short;
  untrained += more.untrained;
}

PackedSequences::PackedSequences(const TokenSource& source, std::int64_t begin, std::int64_t end,
                                 const PackingOptions& options)
    : source_(source), options_(options) {
  TERRACE_CHECK_LT(0, options.sequence_length);
  std::int64_t before = 0;
  source.visit_documents([&](std::int64_t document_end) {
    if (before >= begin && document_end <= end) add_document(before, document_end);
    before = document_end;
  });
  while (!open_.empty()) close(0);
  counts_.sequences = count();
}

PackedSequences::DocumentMask PackedSequences::look_at_mask(std::int64_t begin,
                                                            std::int64_t end) const {
  constexpr std::int64_t kPiece = 1 << 16;
  const std::int64_t targets = end - begin - 1;
  const std::int64_t length = options_.sequence_length;
  if (!options_.uses_mask || !source_.has_mask()) {
    return {false, targets, std::min(targets, length)};
  }
  DocumentMask found;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(std::min(kPiece, end - begin)));
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const auto part = std::span(mask).first(static_cast<std::size_t>(std::min(kPiece, end - at)));
    source_.read_mask(at, part);
    const std::int64_t first_target = at == begin ? 1 : 0;  // the first token is no target
    for (std::int64_t i = first_target; i < std::ssize(part); ++i) {
      if (part[static_cast<std::size_t>(i)] == 0) {
        found.has_gaps = true;
        continue;
      }
      ++found.trained;
      if (at + i <= begin + length) ++found.trained_first;
    }
  }
  return found;
}

void PackedSequences::add_document(std::int64_t begin, std::int64_t end) {
  ++counts_.documents;
  if (end - begin < 2) {
    ++counts_.too_short;
    return;
  }
  const DocumentMask mask = look_at_mask(begin, end);
  const std::int64_t length = options_.sequence_length;
  const bool is_cut = end - begin > length + 1;
  const bool truncates = is_cut && mask.has_gaps;
  const std::int64_t rows = truncates ? length : end - begin - 1;
  const std::int64_t trained = truncates ? mask.trained_first : mask.trained;
  if (trained == 0) {
    ++counts_.untrained;
    return;
  }
  if (truncates) {
    ++counts_.truncated;
    counts_.truncated_tokens += end - begin - (rows + 1);
  } else if (is_cut) {
    ++counts_.split;
  }
  counts_.rows += rows;
  counts_.trained += trained;
  for (std::int64_t first = 0; first < rows; first += length) {
    place({begin + first, static_cast<std::int32_t>(std::min(length, rows - first))});
  }
}

void PackedSequences::place(const PackedPiece& piece) {
  auto found = std::ranges::find_if(
      open_, [&](const OpenSequence& open) { return open.room >= piece.rows; });
  if (found == open_.end() && open_.size() == kOpen) {
    const auto fullest = std::ranges::min_element(open_, {}, &OpenSequence::room);
    close(static_cast<std::size_t>(fullest - open_.begin()));
    found = open_.end();
  }
  if (found == open_.end()) {
    open_.push_back({.room = options_.sequence_length, .pieces = {}});
    found = open_.end() - 1;
  }
  found->pieces.push_back(piece);
  found->room -= piece.rows;
  if (found->room == 0 || !options_.joins_documents) {
    close(static_cast<std::size_t>(found - open_.begin()));
  }
}

void PackedSequences::close(std::size_t open) {
  for (const PackedPiece& piece : open_[open].pieces) {
    begins_.push_back(piece.begin);
    rows_.push_back(piece.rows);
  }
  first_pieces_.push_back(std::ssize(begins_));
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(open));
}

std::int64_t PackedSequences::pieces(std::int64_t sequence) const {
  const auto at = static_cast<std::size_t>(sequence);
  return first_pieces_.at(at + 1) - first_pieces_.at(at);
}

PackedPiece PackedSequences::piece(std::int64_t sequence, std::int64_t index) const {
  const auto at =
      static_cast<std::size_t>(first_pieces_.at(static_cast<std::size_t>(sequence)) + index);
  return {begins_.at(at), rows_.at(at)};
}

std::uint64_t PackedSequences::hash() const {
  StreamingHash hash;
  hash.add(std::as_bytes(std::span(begins_)));
  hash.add(std::as_bytes(std::span(rows_)));
  hash.add(std::as_bytes(std::span(first_pieces_)));
  return hash.value();
}

}  // namespace terrace
