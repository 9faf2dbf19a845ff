#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data_files.h"
#include "runtime/data/token_source.h"

// What the files named by --data hold.
namespace terrace {

enum class DataFormat : std::uint8_t { kAuto, kText, kLlmc, kRawU16, kRawU32 };

// Reads the value of --data-format. Throws ConfigError for an unknown one, and for those of the
// interface that are not built yet (megatron, jsonl).
DataFormat parse_data_format(std::string_view text);
std::string_view name_of(DataFormat format);

struct DataRequest {
  std::vector<std::string> paths;
  DataFormat format = DataFormat::kAuto;
  std::int64_t vocabulary = 0;
  DataUse use = DataUse::kTraining;
};

struct OpenedData {
  std::unique_ptr<TokenSource> tokens;
  // Files for validation in the directories of training data; null where there are none.
  std::unique_ptr<TokenSource> validation;
  std::vector<std::string> validation_files;
  std::vector<std::string> left_out;  // files of the directories
  std::vector<std::string> doubts;    // what is odd about the ids, as sentences
};

// With kAuto each file tells its format, and all must agree: llm.c by its magic number; text if its
// first 64 KiB have no zero byte and its name does not end in .bin, .idx or .jsonl. Anything else
// is a ConfigError that asks for --data-format: raw ids are never guessed. Text is bytes, ids 0 to
// 255, and all files of a directory; of directories of tokens see list_token_files(). A raw file
// that tells by its beginning, its .idx or its ids (id_check.h) that it is something else is a
// ConfigError that says how to convert it. An llm.c file is checked against its header
// (CorruptData).
OpenedData open_data(const DataRequest& request);

}  // namespace terrace
