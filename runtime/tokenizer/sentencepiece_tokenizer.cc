#include "runtime/tokenizer/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <exception>
#include <utility>

#include "base/error.h"
#include "runtime/tokenizer/token_decoder.h"
#include "runtime/tokenizer/token_id.h"
#include "runtime/tokenizer/tokenizer_file.h"
#include "runtime/tokenizer/unread_tokenizers.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr const char* kFetchModelAgain = "download or make the model again";

using Processor = sentencepiece::SentencePieceProcessor;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<Processor> processor, const std::string& path)
      : processor_(std::move(processor)), path_(path), decoder_(decoder_options()) {
    for (int id = 0; id < processor_->GetPieceSize(); ++id) {
      decoder_.add(id, processor_->IdToPiece(id), processor_->IsControl(id));
    }
  }

  void set_around(std::optional<std::int32_t> begin, std::optional<std::int32_t> end) {
    begin_ = begin;
    end_ = end;
  }
  const Processor& processor() const { return *processor_; }

  std::int64_t vocabulary() const override { return processor_->GetPieceSize(); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (valid_utf8_prefix(text) < text.size()) {
      encode_valid(replace_invalid_utf8(text), ids);
    } else {
      encode_valid(text, ids);
    }
  }

  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    sentencepiece::ImmutableSentencePieceText found;
    const auto status = processor_->Encode({text.data(), text.size()}, found.mutable_proto());
    if (!status.ok()) {
      throw ConfigError(fmt::format("{}: SentencePiece: {}", path_, status.ToString()), "");
    }
    for (const auto& piece : found.pieces()) {
      ids.push_back(static_cast<std::int32_t>(piece.id()));
      ends.push_back(piece.end());
    }
  }

  bool knows_special_texts() const override { return false; }
  std::vector<std::string> special_texts() const override {
    std::vector<std::string> texts;
    for (int id = 0; id < processor_->GetPieceSize(); ++id) {
      if (processor_->IsControl(id)) texts.push_back(processor_->IdToPiece(id));
    }
    return texts;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    return decoder_.decode(ids);
  }

  std::optional<std::int32_t> begin_token() const override { return begin_; }
  std::optional<std::int32_t> end_token() const override { return end_; }

 private:
  void encode_valid(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<int> found;
    const auto status = processor_->Encode({text.data(), text.size()}, &found);
    if (!status.ok()) {
      throw ConfigError(fmt::format("{}: SentencePiece: {}", path_, status.ToString()), "");
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }

  // A model that puts a space before a text takes it off again.
  TokenDecoding decoder_options() const {
    std::vector<std::string> pieces;
    const bool has_prefix = processor_->Encode("a", &pieces).ok() && !pieces.empty() &&
                            pieces.front().starts_with(kSpaceMark);
    return {.byte_fallback = true,
            .replaces = {{kSpaceMark, " "}},
            .strip = " ",
            .strip_count = has_prefix ? 1 : 0,
            .first_token_drops = ""};
  }

  std::unique_ptr<Processor> processor_;
  std::string path_;
  TokenDecoder decoder_;
  std::optional<std::int32_t> begin_;
  std::optional<std::int32_t> end_;
};

// Returns the id of a token that a file beside the model names; nothing where there is none.
std::optional<std::int32_t> resolve_piece(const Processor& processor, const NamedToken& token,
                                          const std::string& path) {
  if (token.id && *token.id < processor.GetPieceSize()) return token.id;
  if (!token.text && !token.id) return std::nullopt;
  const std::string text = token.text.value_or(std::to_string(token.id.value_or(0)));
  for (int id = 0; token.text && id < processor.GetPieceSize(); ++id) {
    if (processor.IdToPiece(id) == text) return id;
  }
  throw ConfigError(
      fmt::format("{}: \"{}\" is not in the vocabulary of {}", token.where, text, path),
      "a tokenizer.json lists added tokens, a .model does not");
}

std::optional<std::int32_t> own_id(int id) {
  return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
}

std::unique_ptr<Processor> load_processor(const std::string& path) {
  auto processor = std::make_unique<Processor>();
  const std::string content = read_tokenizer_file(path);
  refuse_tiktoken(content, path);
  std::string problem;
  try {
    const auto status = processor->LoadFromSerializedProto({content.data(), content.size()});
    if (status.ok()) return processor;
    problem = status.ToString();
  } catch (const std::exception& error) {  // from the library's trie, e.g. a piece without bytes
    problem = error.what();
  }
  throw CorruptData(fmt::format("{}: not a SentencePiece model: {}", path, problem),
                    kFetchModelAgain);
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path, const SpecialNames& names) {
  auto processor = load_processor(path);
  const int pieces = processor->GetPieceSize();
  if (pieces < 1) throw CorruptData(path + ": its vocabulary is empty", kFetchModelAgain);
  if (pieces > kTokenIdMax) {
    throw ConfigError(fmt::format("{}: a vocabulary of {} pieces, but at most {} are built", path,
                                  pieces, kTokenIdMax),
                      "use a tokenizer with a smaller vocabulary");
  }
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(std::move(processor), path);
  const Processor& loaded = tokenizer->processor();
  const bool adds_begin = names.adds_begin.value_or(true);
  const std::optional<std::int32_t> begin =
      names.begin.is_named ? resolve_piece(loaded, names.begin, path) : own_id(loaded.bos_id());
  const std::optional<std::int32_t> end =
      names.end.is_named ? resolve_piece(loaded, names.end, path) : own_id(loaded.eos_id());
  tokenizer->set_around(adds_begin ? begin : std::nullopt, end);
  return tokenizer;
}

}  // namespace terrace
