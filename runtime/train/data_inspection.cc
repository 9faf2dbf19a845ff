#include "runtime/train/data_inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "runtime/data/data_files.h"
#include "runtime/data/json_texts.h"
#include "runtime/data/megatron_index.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Document = nlohmann::ordered_json;

constexpr std::string_view kIndexEnding = ".idx";
constexpr std::string_view kMaskEnding = ".mask";

// Returns the path of the file that a companion stands beside; null where it does not exist.
Document file_beside(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? Document(path) : Document();
}

Document describe_megatron(const std::string& path) {
  const TokenFile ids = open_megatron(megatron_ids_path(path));
  std::int64_t documents = 0;
  visit_megatron_ends(path, [&](std::int64_t) { ++documents; });
  return {{"kind", "megatron_index"}, {"path", path},         {"size_bytes", size_of_file(path)},
          {"documents", documents},   {"tokens", ids.tokens}, {"of", ids.path}};
}

// Describes a file of document ends: u64 numbers, the last of which is the number of tokens.
Document describe_ends(const std::string& path) {
  const std::uint64_t size = size_of_file(path);
  if (size == 0 || size % sizeof(std::uint64_t) != 0) {
    throw CorruptData(fmt::format("{} has {} bytes, but it must consist of document ends of 8 "
                                  "bytes each",
                                  path, size),
                      "make it again with terrace tokenize");
  }
  std::uint64_t tokens = 0;
  const ReadableFile file(path);
  file.read(size - sizeof(tokens), std::as_writable_bytes(std::span(&tokens, 1)));
  const std::string of = path.substr(0, path.size() - kIndexEnding.size());
  return {{"kind", "document_ends"}, {"path", path},
          {"size_bytes", size},      {"documents", size / sizeof(std::uint64_t)},
          {"tokens", tokens},        {"of", file_beside(of)}};
}

Document describe_mask(const std::string& path) {
  const std::uint64_t size = size_of_file(path);
  return {{"kind", "mask"},
          {"path", path},
          {"size_bytes", size},
          {"tokens", size},
          {"of", file_beside(path.substr(0, path.size() - kMaskEnding.size()))}};
}

}  // namespace

std::string describe_json_lines(const std::string& path) {
  Document document = {{"kind", "json_lines"}, {"path", path}, {"size_bytes", size_of_file(path)}};
  const JsonLayout layout = json_layout_of_file(path);
  const std::unique_ptr<JsonTexts> texts = open_json_texts(path, layout);
  std::uint64_t number = 1;
  std::optional<std::string_view> line = texts->next();
  while (line && line->find_first_not_of(" \t\r") == std::string_view::npos) {
    line = texts->next();
    ++number;
  }
  Document keys = Document::array();
  if (line) {
    const Document first = Document::parse(*line, nullptr, false);
    if (!first.is_object()) {
      throw CorruptData(fmt::format("{}: not a JSON object", json_place(path, layout, number)),
                        "each document must be an object, such as {\"text\": \"...\"}");
    }
    for (const auto& [key, value] : first.items()) keys.push_back(key);
  }
  document["keys"] = std::move(keys);
  return document.dump();
}

std::optional<std::string> describe_data_companion(const std::string& path) {
  if (holds_json_documents(path)) return describe_json_lines(path);
  if (path.ends_with(kMaskEnding)) return describe_mask(path).dump();
  if (!path.ends_with(kIndexEnding)) return std::nullopt;
  const bool is_megatron = has_megatron_index(megatron_ids_path(path));
  return (is_megatron ? describe_megatron(path) : describe_ends(path)).dump();
}

}  // namespace terrace
