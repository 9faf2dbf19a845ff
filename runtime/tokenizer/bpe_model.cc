#include "runtime/tokenizer/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "runtime/tokenizer/piece_hash.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr std::size_t kUnicodeSize = 0x110000;

}  // namespace

BpeModel::BpeModel(BpeOptions options)
    : by_text_(options.vocabulary.size()),
      merges_(options.merges),
      byte_level_(options.byte_level),
      ignore_merges_(options.ignore_merges),
      byte_fallback_(options.byte_fallback),
      fuse_unknown_(options.fuse_unknown),
      unknown_(options.unknown) {
  by_byte_.fill(kNone);
  fallback_.fill(kNone);
  if (!byte_level_) by_code_point_.assign(kUnicodeSize, kNone);
  for (const BpeOptions::Token& token : options.vocabulary) {
    const std::string& text = token.text;
    if (text.empty()) continue;
    by_text_.add(text, token.id);
    if (byte_level_) {
      if (text.size() == 1) by_byte_[static_cast<unsigned char>(text.front())] = token.id;
    } else if (const CodePoint point = code_point_at(text, 0); point.size_bytes == text.size()) {
      by_code_point_[point.value] = token.id;
    }
  }
  if (byte_fallback_) find_byte_tokens();
  const bool has_all_bytes = std::ranges::find(fallback_, kNone) == fallback_.end();
  const bool joins_bytes = std::ranges::any_of(options.merges, [&](const BpeMerge& merge) {
    return std::ranges::find(fallback_, merge.left) != fallback_.end() ||
           std::ranges::find(fallback_, merge.right) != fallback_.end();
  });
  cuts_ = !byte_level_ && !ignore_merges_ && has_all_bytes && !joins_bytes;
  if (!cuts_) return;
  for (const BpeOptions::Token& token : options.vocabulary) add_bigrams(token.text);
}

void BpeModel::find_byte_tokens() {
  for (std::size_t byte = 0; byte < fallback_.size(); ++byte) {
    fallback_[byte] = by_text_.find(fmt::format("<0x{:02X}>", byte));
  }
}

void BpeModel::add_bigrams(std::string_view text) {
  if (text.empty()) return;
  CodePoint left = code_point_at(text, 0);
  for (std::size_t at = left.size_bytes; at < text.size();) {
    const CodePoint right = code_point_at(text, at);
    bigrams_.insert(std::uint64_t{left.value} << 32 | right.value);
    left = right;
    at += right.size_bytes;
  }
}

void BpeModel::append_ids(std::span<const TextPiece> pieces, std::vector<std::int32_t>& ids,
                          Scratch& scratch) const {
  if (cuts_) {
    for (const TextPiece& piece : pieces) append_parts(piece.text, ids, scratch);
    return;
  }
  // The slots of later pieces come from memory while the first ones are worked on.
  TERRACE_CHECK_LE(pieces.size(), kPiecesOfBatch);
  std::array<std::uint64_t, kPiecesOfBatch> hashes;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    hashes[i] = piece_hash(pieces[i].text);
    scratch.cache.prefetch(hashes[i]);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    append_word(pieces[i].text, hashes[i], ids, scratch);
  }
}

void BpeModel::append_parts(std::string_view piece, std::vector<std::int32_t>& ids,
                            Scratch& scratch) const {
  const auto append = [&](std::string_view word) {
    append_word(word, piece_hash(word), ids, scratch);
  };
  std::size_t begin = 0;
  CodePoint left = code_point_at(piece, 0);
  for (std::size_t at = left.size_bytes; at < piece.size();) {
    const CodePoint right = code_point_at(piece, at);
    if (is_cut_allowed(left.value, right.value)) {
      append(piece.substr(begin, at - begin));
      begin = at;
    }
    left = right;
    at += right.size_bytes;
  }
  append(piece.substr(begin));
}

void BpeModel::append_word(std::string_view word, std::uint64_t hash,
                           std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (word.size() > PieceIdCache::kPieceBytesMax) return append_merged(word, ids, scratch);
  const std::span<const std::int32_t> known = scratch.cache.find(word, hash);
  if (known.size() == 1) return ids.push_back(known.front());
  if (!known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const std::size_t first = ids.size();
  append_merged(word, ids, scratch);
  scratch.cache.store(word, hash, std::span(ids).subspan(first));
}

void BpeModel::append_merged(std::string_view piece, std::vector<std::int32_t>& ids,
                             Scratch& scratch) const {
  if (ignore_merges_) {
    const std::int32_t whole = by_text_.find(piece);
    if (whole != kNone) return ids.push_back(whole);
  }
  const std::size_t first = ids.size();
  append_symbols(piece, ids);
  merges_.apply(ids, first, scratch.merging);
}

// Appends the ids of symbols. An unknown symbol's id waits until the next symbol that has one of
// its own, so it comes after bytes that stand between them, as in BPE::merge_word of `tokenizers`.
void BpeModel::append_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const {
  bool waits = false;
  std::size_t size = 1;
  for (std::size_t at = 0; at < piece.size(); at += size) {
    std::int32_t id = kNone;
    if (byte_level_) {
      id = by_byte_[static_cast<unsigned char>(piece[at])];
    } else {
      const CodePoint point = code_point_at(piece, at);
      id = by_code_point_[point.value];
      size = point.size_bytes;
    }
    if (id != kNone) {
      if (waits) ids.push_back(*unknown_);
      waits = false;
      ids.push_back(id);
    } else if (!append_fallback(piece.substr(at, size), ids) && unknown_) {
      if (waits && !fuse_unknown_) ids.push_back(*unknown_);
      waits = true;
    }
  }
  if (waits) ids.push_back(*unknown_);
}

std::size_t BpeModel::unknown_bytes(std::string_view text) const {
  if (byte_level_) return std::min<std::size_t>(1, text.size());
  std::size_t size = 0;
  while (size < text.size()) {
    const CodePoint point = code_point_at(text, size);
    if (size > 0 && (!fuse_unknown_ || by_code_point_[point.value] != kNone)) break;
    size += point.size_bytes;
  }
  return size;
}

bool BpeModel::append_fallback(std::string_view code_point, std::vector<std::int32_t>& ids) const {
  const auto id_of = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
  if (!byte_fallback_) return false;
  if (std::ranges::any_of(code_point, [&](char c) { return id_of(c) == kNone; })) return false;
  for (const char c : code_point) ids.push_back(id_of(c));
  return true;
}

}  // namespace terrace
