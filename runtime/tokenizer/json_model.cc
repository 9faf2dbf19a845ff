#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/json_components.h"
#include "runtime/tokenizer/token_id.h"

namespace terrace {
namespace {

Vocabulary read_vocabulary(const JsonNode& node) {
  Vocabulary vocabulary;
  std::set<std::int32_t> ids;
  node.for_each_entry([&](const std::string& token, const JsonNode& value) {
    const std::int32_t id = read_token_id(value);
    if (!ids.insert(id).second) node.corrupt(fmt::format("two tokens have the id {}", id));
    vocabulary[token] = id;
  });
  return vocabulary;
}

// Returns both sides of a merge, which is ["a", "b"], or "a b" in older files.
std::pair<std::string, std::string> sides_of(const JsonNode& node) {
  if (!node.is_text()) {
    if (node.size() != 2) node.corrupt("a merge does not have two tokens");
    return {node.item(0).text(), node.item(1).text()};
  }
  const std::string text = node.text();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    node.corrupt(fmt::format("the merge \"{}\" does not have two tokens", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<BpeMerge> read_merges(const JsonNode& node, const Vocabulary& vocabulary) {
  if (node.size() > BpeMerges::kMergesMax) {
    node.refuse(
        fmt::format("{} merges, but at most {} are built", node.size(), BpeMerges::kMergesMax));
  }
  std::vector<BpeMerge> merges;
  merges.reserve(node.size());
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) {
      node.corrupt(fmt::format("\"{}\" is merged but not in the vocabulary", token));
    }
    return found->second;
  };
  node.for_each_item([&](const JsonNode& each) {
    const auto [left, right] = sides_of(each);
    merges.push_back({.left = id_of(left),
                      .right = id_of(right),
                      .rank = static_cast<std::int32_t>(merges.size()),
                      .id = id_of(left + right)});
  });
  return merges;
}

// Refuses a text of the model that must be empty, because what it asks for is not built.
void refuse_text(const JsonNode& node, std::string_view key) {
  if (node.has(key) && !node.text(key).empty()) {
    node.refuse(fmt::format("{} \"{}\" is not built", key, node.text(key)));
  }
}

void add_tokens(const JsonNode& node, const Vocabulary& vocabulary, BpeOptions& bpe) {
  const ByteAlphabet alphabet;
  bpe.vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary) {
    if (!bpe.byte_level) {
      bpe.vocabulary.push_back({token, id});
    } else if (std::optional<std::string> bytes = alphabet.bytes_of(token)) {
      bpe.vocabulary.push_back({std::move(*bytes), id});
    }
  }
  if (bpe.byte_level && bpe.byte_fallback) node.refuse("byte_fallback of bytes is not built");
}

AddedToken read_added_token(const JsonNode& node) {
  node.check_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = node.text("content");
  token.id = read_token_id(node.child("id"));
  token.single_word = node.flag("single_word", false);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  token.is_special = node.flag("special", false);
  token.normalized = node.flag("normalized", !token.is_special);
  if (token.content.empty()) node.corrupt("an added token without text");
  return token;
}

// Returns the id that `tokenizers` gives an added token, whatever the file says: the model's, or
// the next that is free.
std::int32_t expected_id(const AddedToken& token, const Vocabulary& vocabulary,
                         std::int32_t highest) {
  const auto found = vocabulary.find(token.content);
  if (found != vocabulary.end()) return found->second;
  return std::max(highest + 1, static_cast<std::int32_t>(vocabulary.size()));
}

}  // namespace

ReadModel read_model(const JsonNode& node, bool byte_level) {
  const std::string type = node.has("type") ? node.text("type") : "BPE";
  if (type != "BPE") node.refuse(fmt::format("the model {} is not built", type));
  node.check_keys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                   "merges"});
  if (node.has("dropout")) node.refuse("dropout is not built");
  refuse_text(node, "continuing_subword_prefix");
  refuse_text(node, "end_of_word_suffix");
  ReadModel model;
  model.vocabulary = read_vocabulary(node.child("vocab"));
  model.bpe.merges = read_merges(node.child("merges"), model.vocabulary);
  model.bpe.byte_level = byte_level;
  model.bpe.ignore_merges = node.flag("ignore_merges", false);
  model.bpe.byte_fallback = node.flag("byte_fallback", false);
  model.bpe.fuse_unknown = node.flag("fuse_unk", false);
  if (node.has("unk_token")) {
    const std::string unknown = node.text("unk_token");
    const auto found = model.vocabulary.find(unknown);
    if (found == model.vocabulary.end()) {
      node.corrupt(fmt::format("unk_token \"{}\" is not in the vocabulary", unknown));
    }
    model.bpe.unknown = found->second;
  }
  add_tokens(node, model.vocabulary, model.bpe);
  return model;
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Vocabulary& vocabulary) {
  std::vector<AddedToken> special;
  std::vector<AddedToken> others;
  std::set<std::string> contents;
  std::int32_t highest = -1;
  if (node.is_null()) return {};
  node.for_each_item([&](const JsonNode& each) {
    AddedToken token = read_added_token(each);
    if (!contents.insert(token.content).second) {
      each.corrupt(fmt::format("the added token \"{}\" is listed twice", token.content));
    }
    const std::int32_t expected = expected_id(token, vocabulary, highest);
    if (token.id != expected) {
      each.refuse(
          fmt::format("the added token \"{}\" has the id {}, but the tokenizers library assigns {}",
                      token.content, token.id, expected));
    }
    highest = std::max(highest, token.id);
    (token.is_special ? special : others).push_back(std::move(token));
  });
  special.insert(special.end(), std::make_move_iterator(others.begin()),
                 std::make_move_iterator(others.end()));
  return special;
}

}  // namespace terrace
