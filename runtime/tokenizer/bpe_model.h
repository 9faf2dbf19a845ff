#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/tokenizer/bpe_merges.h"
#include "runtime/tokenizer/piece_id_cache.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/token_table.h"

namespace terrace {

// A model "BPE" of a tokenizer.json.
struct BpeOptions {
  struct Token {
    std::string text;  // as pieces have it: bytes, where the model is byte-level
    std::int32_t id = 0;
  };
  std::vector<Token> vocabulary;
  std::vector<BpeMerge> merges;
  bool byte_level = false;              // ids begin as bytes, otherwise as code points
  bool ignore_merges = false;           // a piece that is in the vocabulary is its id
  bool byte_fallback = false;           // a code point that is not in it is bytes, as "<0x0A>"
  bool fuse_unknown = false;            // neighbouring unknown code points are one id
  std::optional<std::int32_t> unknown;  // without it they have no id
};

// Turns pieces into ids. Thread-safe.
class BpeModel {
 public:
  explicit BpeModel(BpeOptions options);

  // Memory that append_ids() uses, kept from call to call by one thread.
  struct Scratch {
    BpeMerges::Scratch merging;
    PieceIdCache cache;
  };

  // Appends the ids of at most kPiecesOfBatch pieces, none of which is empty. The cache slots of
  // all pieces are fetched before the first piece is looked at, so several at a time are quicker.
  void append_ids(std::span<const TextPiece> pieces, std::vector<std::int32_t>& ids,
                  Scratch& scratch) const;

  // Returns the id of code points that the model does not know, where it has one.
  std::optional<std::int32_t> unknown() const { return unknown_; }
  // Returns how many bytes at the beginning of a text the model's unknown id stands for, if the
  // text begins with a code point that it does not know.
  std::size_t unknown_bytes(std::string_view text) const;

 private:
  static constexpr std::int32_t kNone = TokenTable::kNone;

  void add_bigrams(std::string_view text);
  void find_byte_tokens();
  bool is_cut_allowed(char32_t left, char32_t right) const {
    return !bigrams_.contains(std::uint64_t{left} << 32 | right);
  }
  void append_parts(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;
  void append_word(std::string_view word, std::uint64_t hash, std::vector<std::int32_t>& ids,
                   Scratch& scratch) const;
  void append_merged(std::string_view piece, std::vector<std::int32_t>& ids,
                     Scratch& scratch) const;
  void append_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const;
  bool append_fallback(std::string_view code_point, std::vector<std::int32_t>& ids) const;

  TokenTable by_text_;
  std::array<std::int32_t, 256> by_byte_ = {};  // of byte-level models
  std::vector<std::int32_t> by_code_point_;     // of others
  std::array<std::int32_t, 256> fallback_ = {};
  BpeMerges merges_;
  bool byte_level_;
  bool ignore_merges_;
  bool byte_fallback_;
  bool fuse_unknown_;
  std::optional<std::int32_t> unknown_;
  // Pairs of code points that stand side by side in a token. No token ever spans another pair, so
  // long pieces are cut between the two and their parts remembered. This is done only where every
  // code point has ids.
  bool cuts_ = false;
  std::unordered_set<std::uint64_t> bigrams_;
};

}  // namespace terrace
