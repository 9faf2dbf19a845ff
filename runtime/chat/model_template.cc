#include "runtime/chat/model_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "runtime/chat/built_in_templates.h"
#include "runtime/jinja/json_value.h"
#include "runtime/tokenizer/tokenizer_file.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNameTemplate = "name a template: --chat-template chatml, alpaca or a file";

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string read_template(const fs::path& path) {
  std::string text = read_tokenizer_file(path.string());
  if (valid_utf8_prefix(text) == text.size()) return text;
  throw CorruptData(fmt::format("{}: not UTF-8", path.string()), "restore the file");
}

// Returns the object of a file; an empty one where there is no file.
jinja::Mapping read_object(const fs::path& path) {
  if (!is_file(path)) return {};
  const jinja::Value value = jinja::parse_json_value(read_tokenizer_file(path.string()),
                                                     path.string(), jinja::LargeNumbers::kRounded);
  return value.is_mapping() ? value.mapping() : jinja::Mapping();
}

// Returns the model's templates by their names; one without a name is "default".
jinja::Mapping named_templates(const jinja::Mapping& file) {
  const jinja::Value* const found = file.find("chat_template");
  jinja::Mapping named;
  if (found == nullptr || found->is_none()) return named;
  if (found->is_mapping()) return found->mapping();
  if (!found->is_list()) {
    named.set("default", *found);
    return named;
  }
  for (const jinja::Value& each : found->items()) {
    if (!each.is_mapping()) continue;
    const jinja::Value* const name = each.mapping().find("name");
    const jinja::Value* const text = each.mapping().find("template");
    if (name != nullptr && name->is_text() && text != nullptr) named.set(*name, *text);
  }
  return named;
}

std::string names_of(const jinja::Mapping& named) {
  std::string names;
  for (const auto& [name, ignored] : named.entries()) {
    if (!name.is_text()) continue;
    names += (names.empty() ? "" : ", ") + name.text();
  }
  return names;
}

TemplateText text_of(const jinja::Value& value, const fs::path& path) {
  if (value.is_text()) return {value.text(), path.string()};
  throw CorruptData(fmt::format("{}: its chat_template is no text", path.string()), kNameTemplate);
}

// The files that may have templates as values of JSON, in the order in which they are looked at.
constexpr std::array<const char*, 2> kJsonFiles = {"chat_template.json", "tokenizer_config.json"};

// Returns the template of this name in the model's files; nothing where there is none.
std::optional<TemplateText> find_by_name(const fs::path& directory, const std::string& name) {
  const fs::path file = directory / "additional_chat_templates" / (name + ".jinja");
  if (is_file(file)) return TemplateText{read_template(file), file.string()};
  for (const char* const json : kJsonFiles) {
    const fs::path path = directory / json;
    const jinja::Mapping named = named_templates(read_object(path));
    if (const jinja::Value* const found = named.find(name)) return text_of(*found, path);
  }
  return std::nullopt;
}

[[noreturn]] void refuse_without_template(const fs::path& directory) {
  const jinja::Mapping adapter = read_object(directory / "adapter_config.json");
  const jinja::Value* const base = adapter.find("base_model_name_or_path");
  throw ConfigError(fmt::format("{} has no chat template: neither chat_template.jinja nor one in "
                                "tokenizer_config.json or chat_template.json",
                                directory.string()),
                    base != nullptr && base->is_text()
                        ? fmt::format("name the base of this adapter: --model {}", base->text())
                        : kNameTemplate);
}

}  // namespace

jinja::Mapping special_tokens_of(const std::string& model_directory) {
  jinja::Mapping tokens;
  if (model_directory.empty()) return tokens;
  // The second file wins.
  for (const char* const name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const jinja::Mapping file = read_object(fs::path(model_directory) / name);
    for (const auto& [key, value] : file.entries()) {
      if (!key.text().ends_with("_token")) continue;
      const jinja::Value* const text =
          value.is_mapping() ? value.mapping().find("content") : &value;
      if (text != nullptr && text->is_text()) tokens.set(key, *text);
    }
  }
  return tokens;
}

bool has_chat_template(const std::string& model_directory) {
  const fs::path directory = model_directory;
  return is_file(directory / "chat_template.jinja") ||
         std::ranges::any_of(kJsonFiles, [&](const char* json) {
           return !named_templates(read_object(directory / json)).empty();
         });
}

TemplateText find_model_template(const std::string& model_directory, bool has_tools) {
  if (model_directory.empty()) throw ConfigError("there is no chat template", kNameTemplate);
  const fs::path directory = model_directory;
  if (const fs::path path = directory / "additional_chat_templates" / "tool_use.jinja";
      has_tools && is_file(path)) {
    return {read_template(path), path.string()};
  }
  if (const fs::path path = directory / "chat_template.jinja"; is_file(path)) {
    return {read_template(path), path.string()};
  }
  for (const char* const json : kJsonFiles) {
    const fs::path path = directory / json;
    const jinja::Mapping named = named_templates(read_object(path));
    if (named.empty()) continue;
    const jinja::Value* found = has_tools ? named.find("tool_use") : nullptr;
    if (found == nullptr) found = named.find("default");
    if (found != nullptr) return text_of(*found, path);
    throw ConfigError(fmt::format("{}: of its chat templates ({}) none is called default",
                                  path.string(), names_of(named)),
                      "name one of them with --chat-template");
  }
  refuse_without_template(directory);
}

TemplateText find_named_template(const std::string& name, const std::string& model_directory) {
  if (is_file(name)) return {read_template(name), name};
  const bool is_plain_name = name.find('/') == std::string::npos;
  if (is_plain_name && !model_directory.empty()) {
    if (std::optional<TemplateText> found = find_by_name(model_directory, name)) {
      return *std::move(found);
    }
  }
  if (const char* const text = find_built_in_template(name)) return {text, name};
  throw ConfigError(
      fmt::format("--chat-template {}: neither a file nor a template of this name", name),
      fmt::format("name a file with a template of Jinja, or one of {}", built_in_template_names()));
}

}  // namespace terrace
