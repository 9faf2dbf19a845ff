#include "runtime/tokenizer/load_tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/hub_cache.h"
#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/json_tokenizer.h"
#include "runtime/tokenizer/sentencepiece_tokenizer.h"
#include "runtime/tokenizer/special_names.h"
#include "runtime/tokenizer/unread_tokenizers.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Refuses a directory whose added_tokens.json has tokens. A .model has no tokens but its own, so
// those would be missed in silence.
void refuse_added_tokens(const fs::path& directory) {
  std::error_code ignored;
  const fs::path path = directory / "added_tokens.json";
  if (!fs::exists(path, ignored)) return;
  const JsonFile file(path.string());
  bool has_tokens = false;
  file.root().for_each_entry([&](const std::string&, const JsonNode&) { has_tokens = true; });
  if (!has_tokens) return;
  throw ConfigError(fmt::format("{}: tokens added to a .model are not built", path.string()),
                    "save the tokenizer as a tokenizer.json, which includes them");
}

}  // namespace

std::string find_tokenizer_file(const std::string& directory) {
  std::error_code ignored;
  const fs::path found = hub_snapshot(directory);
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path path = found / name;
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  return "";
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, Log& log) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    file = find_tokenizer_file(path);
    if (file.empty()) {
      refuse_unread_tokenizer(path);
      throw ConfigError(
          fmt::format("{}: contains neither tokenizer.json nor tokenizer.model", path),
          "name a tokenizer.json or a SentencePiece .model");
    }
  } else if (!fs::is_regular_file(path, error)) {
    throw ConfigError(fmt::format("{}: there is no such tokenizer", path),
                      "name a tokenizer.json, a SentencePiece .model, or a directory with one");
  }
  refuse_unread_tokenizer_file(file);
  const fs::path directory = fs::path(file).parent_path();
  const SpecialNames names = read_special_names(directory.empty() ? "." : directory.string());
  if (file.ends_with(".json")) return load_json_tokenizer(file, names, log);
  if (file.ends_with(".model")) {
    refuse_added_tokens(directory.empty() ? "." : directory);
    return load_sentencepiece(file, names);
  }
  throw ConfigError(fmt::format("{}: the name ends neither in .json nor in .model", file),
                    "name a tokenizer.json or a SentencePiece .model");
}

}  // namespace terrace
