#include "runtime/tokenizer/unread_tokenizers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Names of files, and their beginnings and ends: of GPT-2's and BERT's first form, SentencePiece
// models whose ids transformers changes, tiktoken, Mistral's tekken, and what accompanies them.
constexpr auto kNames =
    std::to_array<std::string_view>({"vocab.json", "merges.txt", "vocab.txt", "vocab.bpe",
                                     "encoder.json", "tokenizer.pkl", "tokenizer_config.json"});
constexpr auto kBeginnings = std::to_array<std::string_view>({"tekken", "tokenizer.model."});
constexpr auto kEnds = std::to_array<std::string_view>({".model", ".spm", ".tiktoken"});

bool is_unread(std::string_view name) {
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kBeginnings, [&](auto part) { return name.starts_with(part); }) ||
         std::ranges::any_of(kEnds, [&](auto part) { return name.ends_with(part); });
}

// Returns how to get a tokenizer.json, for a tokenizer in `directory`.
std::string way_to_json(const std::string& directory) {
  return fmt::format(
      "fetch the tokenizer.json of the model, or write it with transformers: python3 -c \"from "
      "transformers import AutoTokenizer as A; A.from_pretrained('{0}').save_pretrained('{0}')\"",
      directory);
}

std::string folder_of_file(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

void refuse_unread_tokenizer(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    const bool is_link_to_nothing =
        entry->is_symlink(ignored) && !fs::exists(entry->path(), ignored);
    if (is_link_to_nothing && (is_unread(name) || name == "tokenizer.json")) {
      found.push_back(fmt::format("{} (a link to {}, which does not exist)", name,
                                  fs::read_symlink(entry->path(), ignored).string()));
    } else if (is_unread(name) && entry->is_regular_file(ignored)) {
      found.push_back(name);
    }
  }
  if (found.empty()) return;
  std::ranges::sort(found);
  throw ConfigError(fmt::format("{}: its tokenizer cannot be read: there is neither "
                                "tokenizer.json nor tokenizer.model, but there is {}",
                                directory, fmt::join(found, ", ")),
                    way_to_json(directory) + "; to read text as bytes, give --tokenizer bytes");
}

void refuse_unread_tokenizer_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name.ends_with(".model") || !is_unread(name)) return;
  throw ConfigError(path + ": this form of a tokenizer is not read",
                    way_to_json(folder_of_file(path)));
}

void refuse_tiktoken(std::string_view content, const std::string& path) {
  constexpr std::string_view kBase64 =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  const std::string_view line = content.substr(0, content.find('\n'));
  const std::size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size()) return;
  const bool is_piece = line.substr(0, space).find_first_not_of(kBase64) == std::string_view::npos;
  const bool is_rank =
      line.substr(space + 1).find_first_not_of("0123456789\r") == std::string_view::npos;
  if (!is_piece || !is_rank) return;
  throw ConfigError(path + ": a tokenizer in tiktoken's form, which is not read",
                    way_to_json(folder_of_file(path)));
}

}  // namespace terrace
