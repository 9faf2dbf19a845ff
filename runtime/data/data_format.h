#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/token_source.h"

// What the files named by --data hold.
namespace terrace {

enum class DataFormat : std::uint8_t { kAuto, kText, kLlmc, kRawU16, kRawU32 };

// Reads the value of --data-format. Throws ConfigError for an unknown one, and for those of the
// interface that are not built yet (megatron, jsonl).
DataFormat parse_data_format(std::string_view text);
std::string_view name_of(DataFormat format);

// The regular files under `paths` in the order of the sequence: paths as given, a directory's files
// (recursively, hidden ones left out) in byte order of their paths. Throws ConfigError for a path
// that does not exist, and for a directory with no files; it names the flag that has the paths.
std::vector<std::string> list_data_files(const std::vector<std::string>& paths,
                                         std::string_view flag = "--data");

// With kAuto each file tells its format, and all must agree: llm.c by its magic number; text if its
// first 64 KiB have no zero byte and its name does not end in .bin, .idx or .jsonl. Anything else
// is a ConfigError that asks for --data-format: raw ids are never guessed. An llm.c file is checked
// against its header (CorruptData). Text is bytes, ids 0 to 255.
std::unique_ptr<TokenSource> open_token_source(const std::vector<std::string>& paths,
                                               DataFormat format, std::int64_t vocabulary,
                                               std::string_view flag = "--data");

}  // namespace terrace
