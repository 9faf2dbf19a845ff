#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Turns text into token ids and back. Used by any number of threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns a number that all ids are below.
  virtual std::int64_t vocabulary() const = 0;
  // Appends the ids of `text`, which is UTF-8, without tokens for its beginning or end. Added
  // tokens that stand in the text, as "<|endoftext|>" may, become their ids.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // Encodes as encode() does, and appends for each id the offset in `text`, in bytes, at which its
  // part ends; the next part begins there. `text` is valid UTF-8. The part of an id that stands for
  // nothing, as for a space that the tokenizer puts before a text, is empty. Throws ConfigError
  // where the ids do not spell the text.
  virtual void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                                std::vector<std::size_t>& ends) const = 0;
  // Returns the texts of the special tokens.
  virtual std::vector<std::string> special_texts() const = 0;
  // Returns whether encode() turns the text of a special token into that token. SentencePiece does
  // not.
  virtual bool knows_special_texts() const { return true; }
  // Returns the text of ids, with the text of special tokens. Bytes that are not UTF-8 by
  // themselves are returned as they are. Throws ConfigError for an id that is not below the
  // vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // Returns the token that begins, or ends, a document, where the tokenizer names one.
  virtual std::optional<std::int32_t> begin_token() const = 0;
  virtual std::optional<std::int32_t> end_token() const = 0;
  // Returns a place at or after `from` where the text may be cut, so that the ids of both parts,
  // one after the other, are the ids of the whole text. Returns the text's size where no such place
  // is known.
  virtual std::size_t find_cut(std::string_view text, std::size_t from) const;
};

// Makes a tokenizer whose ids 0 to 255 are the bytes of the text. It has no other ids.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

}  // namespace terrace
