#include "runtime/tokenizer/json_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/tokenizer/json_components.h"
#include "runtime/tokenizer/nfc.h"
#include "runtime/tokenizer/regex_finder.h"
#include "runtime/tokenizer/scratch_pool.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

// The memory that one encode() at a time uses.
struct EncodeScratch {
  BpeModel::Scratch model;
  std::string normalized;
  std::string between;  // two normalisers
};

struct JsonTokenizerParts {
  std::vector<AddedToken> added;
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  PreTokenizerSteps pre_tokenizers;
  BpeOptions bpe;
  TokenDecoding decoder;
  Vocabulary vocabulary;
  AroundText around;
};

class JsonTokenizer final : public Tokenizer {
 public:
  // The parts hold references to `classes`.
  JsonTokenizer(std::unique_ptr<UnicodeClasses> classes, JsonTokenizerParts parts)
      : classes_(std::move(classes)),
        normalizers_(std::move(parts.normalizers)),
        steps_(std::move(parts.pre_tokenizers.steps)),
        raw_tokens_(tokens_of(parts.added, false), *classes_),
        normalized_tokens_(tokens_of(parts.added, true), *classes_),
        model_(std::move(parts.bpe)),
        decoder_(std::move(parts.decoder)),
        around_(parts.around) {
    for (const AddedToken& token : normalized_tokens_.tokens()) {
      normalized_by_id_.emplace(token.id, &token);
    }
    keeps_crlf_ = parts.pre_tokenizers.keeps_crlf;
    cuts_at_lines_ =
        parts.pre_tokenizers.cuts_at_lines &&
        std::ranges::all_of(normalizers_, [](const auto& each) { return each->works_by_line(); }) &&
        std::ranges::none_of(parts.added, [](const AddedToken& token) {
          return token.lstrip || token.content.find('\n') != std::string::npos;
        });
    for (const auto& [token, id] : parts.vocabulary) decoder_.add(id, token, false);
    for (const AddedToken& token : parts.added) decoder_.add(token.id, token.content, true);
  }

  std::int64_t vocabulary() const override { return decoder_.vocabulary(); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const ScratchPool<EncodeScratch>::Lease scratch = scratches_.take();
    if (valid_utf8_prefix(text) < text.size()) {
      encode_valid(replace_invalid_utf8(text), ids, *scratch);
    } else {
      encode_valid(text, ids, *scratch);
    }
  }

  void encode_with_ends(std::string_view text, std::vector<std::int32_t>& ids,
                        std::vector<std::size_t>& ends) const override {
    const ScratchPool<EncodeScratch>::Lease scratch = scratches_.take();
    raw_tokens_.cut(text, [&](const AddedTokenFinder::Part& raw) {
      if (raw.id != AddedTokenFinder::kText) {
        ids.push_back(raw.id);
        ends.push_back(raw.begin + raw.text.size());
        return;
      }
      const std::size_t first = ids.size();
      encode_raw(raw, ids, *scratch);
      add_ends(raw, std::span(ids).subspan(first), ends);
    });
  }

  std::vector<std::string> special_texts() const override {
    std::vector<std::string> texts;
    for (const AddedTokenFinder* const finder : {&raw_tokens_, &normalized_tokens_}) {
      for (const AddedToken& token : finder->tokens()) {
        if (token.is_special) texts.push_back(token.content);
      }
    }
    return texts;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    return decoder_.decode(ids);
  }

  std::optional<std::int32_t> begin_token() const override { return around_.begin; }
  std::optional<std::int32_t> end_token() const override { return around_.end; }

  std::size_t find_cut(std::string_view text, std::size_t from) const override {
    if (!cuts_at_lines_) return text.size();
    for (std::size_t at = text.find('\n', from); at != std::string_view::npos;
         at = text.find('\n', at + 1)) {
      if (is_cut(text, at + 1)) return at + 1;
    }
    return text.size();
  }

 private:
  // Returns the tokens that are looked for in normalised text, normalised themselves; or the
  // others.
  std::vector<AddedToken> tokens_of(const std::vector<AddedToken>& added, bool normalized) const {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : added) {
      if (token.normalized != normalized) continue;
      tokens.push_back(token);
      if (!normalized) continue;
      std::string between;
      std::string content;
      tokens.back().content = normalize(token.content, content, between);
    }
    return tokens;
  }

  // Returns the text itself where there is nothing to do, else the normalised text, which is in
  // `out`.
  std::string_view normalize(std::string_view text, std::string& out, std::string& between) const {
    for (std::size_t i = 0; i < normalizers_.size(); ++i) {
      if (i > 0) std::swap(out, between);
      out.clear();
      normalizers_[i]->append(i > 0 ? std::string_view(between) : text, out);
    }
    return normalizers_.empty() ? text : std::string_view(out);
  }

  void encode_valid(std::string_view text, std::vector<std::int32_t>& ids,
                    EncodeScratch& scratch) const {
    raw_tokens_.cut(text, [&](const AddedTokenFinder::Part& raw) {
      if (raw.id != AddedTokenFinder::kText) return ids.push_back(raw.id);
      encode_raw(raw, ids, scratch);
    });
  }

  // Appends the ids of text between added tokens.
  void encode_raw(const AddedTokenFinder::Part& raw, std::vector<std::int32_t>& ids,
                  EncodeScratch& scratch) const {
    const std::string_view normalized = normalize(raw.text, scratch.normalized, scratch.between);
    normalized_tokens_.cut(normalized, [&](const AddedTokenFinder::Part& part) {
      if (part.id != AddedTokenFinder::kText) return ids.push_back(part.id);
      const bool begins_text = raw.begin == 0 && part.begin == 0;
      encode_piece(0, {part.text, begins_text}, [&](std::span<const TextPiece> pieces) {
        model_.append_ids(pieces, ids, scratch.model);
      });
    });
  }

  // Appends where the parts of the ids of `raw` end, by the texts that the ids stand for: one after
  // the other, they are the text itself, except for a space that may be put before it.
  void add_ends(const AddedTokenFinder::Part& raw, std::span<const std::int32_t> ids,
                std::vector<std::size_t>& ends) const {
    std::string composed;
    std::vector<std::size_t> composed_ends;
    const bool composes =
        std::ranges::any_of(normalizers_, [](const auto& each) { return each->composes(); });
    if (composes) append_nfc(*classes_, raw.text, composed, composed_ends);
    const std::string_view text = composes ? std::string_view(composed) : raw.text;
    std::optional<std::vector<std::size_t>> found = find_ends(text, ids, false);
    if (!found) found = find_ends(text, ids, true);
    if (!found) refuse_places(text);
    for (const std::size_t end : *found) {
      ends.push_back(raw.begin + (composes && end > 0 ? composed_ends[end - 1] : end));
    }
  }

  // Returns where the parts of the ids end; nothing where the ids do not spell the text. Their
  // first space is not in the text if `has_space_before`.
  std::optional<std::vector<std::size_t>> find_ends(std::string_view text,
                                                    std::span<const std::int32_t> ids,
                                                    bool has_space_before) const {
    std::vector<std::size_t> ends;
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool drops_space = has_space_before && i == 0;
      const std::optional<std::size_t> size = part_size(text.substr(at), ids[i], drops_space);
      if (!size) return std::nullopt;
      at += *size;
      ends.push_back(at);
    }
    return at == text.size() ? std::optional(std::move(ends)) : std::nullopt;
  }

  // Returns how many bytes at the front of `text` the id stands for; nothing where it stands for
  // another text.
  std::optional<std::size_t> part_size(std::string_view text, std::int32_t id,
                                       bool drops_space) const {
    if (id == model_.unknown()) return model_.unknown_bytes(text);
    const AddedToken* const added = find_added(id);
    const auto spaces = [&](std::size_t from) {
      return std::min(text.find_first_not_of(' ', from), text.size()) - from;
    };
    std::size_t at = added != nullptr && added->lstrip ? spaces(0) : 0;
    std::string_view token = decoder_.text_of(id);
    if (drops_space) {
      if (!token.starts_with(' ')) return std::nullopt;
      token.remove_prefix(1);
    }
    // In a text, SentencePiece's mark for a space counts as one.
    constexpr std::string_view kMark = "\u2581";
    for (const char byte : token) {
      const std::string_view rest = text.substr(at);
      if (rest.starts_with(byte)) {
        ++at;
      } else if (byte == ' ' && rest.starts_with(kMark)) {
        at += kMark.size();
      } else {
        return std::nullopt;
      }
    }
    return added != nullptr && added->rstrip ? at + spaces(at) : at;
  }

  // Returns the added token of an id that is looked for in normalised text; null for another id.
  const AddedToken* find_added(std::int32_t id) const {
    const auto found = normalized_by_id_.find(id);
    return found == normalized_by_id_.end() ? nullptr : found->second;
  }

  [[noreturn]] static void refuse_places(std::string_view text) {
    constexpr std::size_t kShown = 40;
    throw ConfigError(fmt::format("the tokenizer's ids do not spell the text at \"{}\", so it is "
                                  "not known which of them are to be trained on",
                                  replace_invalid_utf8(text.substr(0, kShown))),
                      "convert the data to ids with the tokenizer's own library");
  }

  // Cuts the piece by all steps from `step` on.
  void encode_piece(std::size_t step, const TextPiece& piece, TakePieces take) const {
    if (step == steps_.size()) return take({&piece, 1});
    if (step + 1 == steps_.size()) return steps_[step]->cut(piece, take);
    steps_[step]->cut(piece, [&](std::span<const TextPiece> pieces) {
      for (const TextPiece& each : pieces) encode_piece(step + 1, each, take);
    });
  }

  // Returns whether a single end of a line (LF or, where the pattern keeps it, CR LF) stands before
  // `at`, and a letter at it. No piece goes over such a place, no pattern looks over it, and NFC
  // does not join the code points on its sides.
  bool is_cut(std::string_view text, std::size_t at) const {
    if (at < 2 || at >= text.size()) return false;
    std::string_view line = text.substr(0, at - 1);
    if (keeps_crlf_ && line.ends_with('\r')) line.remove_suffix(1);
    const std::optional<char32_t> last = last_code_point(line);
    const std::optional<char32_t> first = first_code_point(text.substr(at));
    return last && first && !classes_->is(*last, CodePointClass::kSpace) &&
           classes_->is(*first, CodePointClass::kLetter) &&
           !classes_->is(*first, CodePointClass::kNfcSpecial);
  }

  std::unique_ptr<UnicodeClasses> classes_;
  std::vector<std::unique_ptr<Normalizer>> normalizers_;
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  std::unordered_map<std::int32_t, const AddedToken*> normalized_by_id_;
  BpeModel model_;
  TokenDecoder decoder_;
  AroundText around_;
  bool cuts_at_lines_ = false;
  bool keeps_crlf_ = false;
  mutable ScratchPool<EncodeScratch> scratches_;
};

// Returns one more than the largest id.
std::int64_t ids_of(const JsonTokenizerParts& parts) {
  std::int64_t ids = 0;
  for (const auto& [token, id] : parts.vocabulary) ids = std::max<std::int64_t>(ids, id + 1);
  for (const AddedToken& added : parts.added) ids = std::max<std::int64_t>(ids, added.id + 1);
  return ids;
}

// Throws ConfigError for an id that is not in the vocabulary. `where` is the file, and the key in
// it, that names the id; `path` is the tokenizer.
void check_named_id(std::int32_t id, const std::string& where, const JsonTokenizerParts& parts,
                    const std::string& path) {
  const std::int64_t ids = ids_of(parts);
  if (id < ids) return;
  throw ConfigError(fmt::format("{}: the id {} is not in the vocabulary of {}, which has {} ids",
                                where, id, path, ids),
                    "name a token of the vocabulary there, or take both files from the same model");
}

// Returns the id of a token that a file beside the tokenizer names.
std::int32_t resolve(const NamedToken& token, const JsonTokenizerParts& parts,
                     const std::string& path) {
  if (token.id) {
    check_named_id(*token.id, token.where, parts, path);
    return *token.id;
  }
  for (const AddedToken& added : parts.added) {
    if (added.content == *token.text) return added.id;
  }
  const auto found = parts.vocabulary.find(*token.text);
  if (found != parts.vocabulary.end()) return found->second;
  throw ConfigError(
      fmt::format("{}: \"{}\" is not in the vocabulary of {}", token.where, *token.text, path),
      "name a token of the vocabulary there");
}

AroundText around_text(const AroundText& of_template, const SpecialNames& names,
                       const JsonTokenizerParts& parts, const std::string& path) {
  AroundText around = of_template;
  const auto is_given = [](const NamedToken& token) { return token.text || token.id; };
  if (names.adds_begin) {
    around.begin = std::nullopt;
    if (*names.adds_begin && is_given(names.begin)) {
      around.begin = resolve(names.begin, parts, path);
    }
  }
  if (names.end.is_named) {
    around.end = std::nullopt;
    if (is_given(names.end)) around.end = resolve(names.end, parts, path);
  }
  return around;
}

}  // namespace

std::unique_ptr<Tokenizer> load_json_tokenizer(const std::string& path, const SpecialNames& names,
                                               Log& log) {
  const JsonFile file(path);
  const JsonNode root = file.root();
  root.check_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"});
  if (root.has("truncation")) root.refuse("truncation is not built: set it to null");
  if (root.has("padding")) root.refuse("padding is not built: set it to null");
  auto classes = std::make_unique<UnicodeClasses>();
  JsonTokenizerParts parts;
  parts.normalizers = read_normalizers(root.child("normalizer"), *classes);
  parts.pre_tokenizers = read_pre_tokenizers(root.child("pre_tokenizer"), *classes);
  ReadModel model = read_model(root.child("model"), parts.pre_tokenizers.byte_level);
  parts.bpe = std::move(model.bpe);
  parts.vocabulary = std::move(model.vocabulary);
  parts.added = read_added_tokens(root.child("added_tokens"), parts.vocabulary);
  parts.decoder = read_decoder(root.child("decoder"));
  if (parts.pre_tokenizers.byte_level) parts.decoder.byte_level = true;
  const JsonNode post_processor = root.child("post_processor");
  const AroundText of_template = read_post_processor(post_processor);
  for (const std::optional<std::int32_t>& id : {of_template.begin, of_template.end}) {
    if (id) check_named_id(*id, post_processor.where(), parts, path);
  }
  parts.around = around_text(of_template, names, parts, path);
  for (const std::string& pattern : parts.pre_tokenizers.unknown_patterns) {
    log.warning(fmt::format(
        "{}: PCRE2 matches the pattern {} with the character classes of Unicode {}: texts with "
        "newer letters may get other ids than from the tokenizers library",
        path, pattern, regex_unicode_version()));
  }
  return std::make_unique<JsonTokenizer>(std::move(classes), std::move(parts));
}

}  // namespace terrace
