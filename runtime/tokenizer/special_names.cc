#include "runtime/tokenizer/special_names.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/token_id.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Reads "</s>", {"content": "</s>"} or null.
void read_named_text(const JsonNode& root, std::string_view key, NamedToken& token) {
  if (token.is_named || !root.names(key)) return;
  token.is_named = true;
  if (!root.has(key)) return;
  const JsonNode node = root.child(key);
  token.where = node.where();
  token.text = node.is_object() ? node.text("content") : node.text();
}

// Reads 2, [2, 7] or null; takes the first of several.
void read_named_id(const JsonNode& root, std::string_view key, NamedToken& token) {
  if (token.is_named || !root.has(key)) return;
  const JsonNode node = root.child(key);
  if (node.is_array() && node.size() == 0) return;
  const std::int32_t id = read_token_id(node.is_array() ? node.item(0) : node);
  token.is_named = true;
  token.where = node.where();
  token.id = id;
}

// Reads 2, [2, 7] or null. A negative number, as old files have it, is no token.
std::vector<std::int32_t> read_ids(const JsonNode& root, std::string_view key) {
  std::vector<std::int32_t> ids;
  if (!root.has(key)) return ids;
  const auto add = [&ids](const JsonNode& node) {
    if (node.integer() >= 0) ids.push_back(read_token_id(node));
  };
  const JsonNode node = root.child(key);
  if (!node.is_array()) add(node);
  for (std::size_t i = 0; node.is_array() && i < node.size(); ++i) add(node.item(i));
  return ids;
}

}  // namespace

EndIds read_end_ids(const std::string& directory) {
  std::error_code ignored;
  for (const std::string_view name : {"generation_config.json", "config.json"}) {
    const std::string path = (fs::path(directory) / name).string();
    if (!fs::exists(path, ignored)) continue;
    const JsonFile file(path);
    return {read_ids(file.root(), "eos_token_id"), name == "config.json"};
  }
  return {};
}

SpecialNames read_special_names(const std::string& directory) {
  SpecialNames names;
  const auto path_of = [&](const char* name) { return (fs::path(directory) / name).string(); };
  std::error_code ignored;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!fs::exists(path_of(name), ignored)) continue;
    const JsonFile file(path_of(name));
    const JsonNode root = file.root();
    read_named_text(root, "bos_token", names.begin);
    read_named_text(root, "eos_token", names.end);
    if (root.has("add_bos_token")) names.adds_begin = root.flag("add_bos_token", false);
  }
  if (fs::exists(path_of("generation_config.json"), ignored)) {
    const JsonFile file(path_of("generation_config.json"));
    read_named_id(file.root(), "bos_token_id", names.begin);
    read_named_id(file.root(), "eos_token_id", names.end);
  }
  return names;
}

}  // namespace terrace
