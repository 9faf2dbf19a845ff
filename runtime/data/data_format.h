#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data_files.h"
#include "runtime/data/token_files.h"
#include "runtime/data/token_source.h"

// The content of the files that --data names.
namespace terrace {

enum class DataFormat : std::uint8_t { kAuto, kText, kLlmc, kRawU16, kRawU32, kJsonl, kMegatron };

// Reads the value of --data-format. Throws ConfigError for an unknown one.
DataFormat parse_data_format(std::string_view text);
std::string_view name_of(DataFormat format);

// Makes a token file of text or JSONL files, as the format says. It is there as long as the
// function is.
using TokenizeFiles =
    std::function<TokenFile(const std::vector<std::string>& files, DataFormat format)>;

struct DataRequest {
  std::vector<std::string> paths;
  DataFormat format = DataFormat::kAuto;
  std::int64_t vocabulary = 0;
  DataUse use = DataUse::kTraining;
  TokenizeFiles tokenize = {};  // JSONL needs it, and text that is tokenized
  bool tokenizes_text = false;  // else its bytes are the ids
};

// A file that tells what kind of ids it has.
struct KnownIds {
  std::string path;
  std::string kind;  // "bytes of text", "GPT-2 tokens (llm.c, 16 bits)"
};

struct OpenedData {
  DataFormat format = DataFormat::kAuto;  // that was found, or asked for
  std::unique_ptr<TokenSource> tokens;
  // Files for validation in the directories of training data; null where there are none.
  std::unique_ptr<TokenSource> validation;
  std::vector<std::string> validation_files;
  std::vector<std::string> left_out;  // files of the directories
  std::vector<std::string> doubts;    // what is odd about the ids, as sentences
  std::vector<KnownIds> known_ids;    // a file of each kind among those that are taken
  std::string run_directories;        // a sentence on those that are left out; empty: none are
};

// Throws ConfigError, naming two files, where they have ids of two kinds, because a model has one
// tokenizer. `known` has the kinds of all data of a run.
void check_one_kind_of_ids(const std::vector<KnownIds>& known);

// Opens the data. With kAuto each file tells its format, and all must agree. JSONL is known by its
// name (.jsonl, .jsonl.gz, .jsonl.zst). Megatron's data is known by the .idx beside a .bin, and
// llm.c's by its magic number. Raw ids are known by the file of their documents' ends beside them,
// FILE.idx, which tells their number. A file is text if its first 64 KiB have no zero byte and its
// name does not end in .bin or .idx. Anything else is a ConfigError that asks for --data-format:
// raw ids are never guessed.
//
// Text is bytes, ids 0 to 255, unless the request has it tokenized. A directory of text gives all
// its files; for directories of tokens and of JSONL see list_token_files() and list_jsonl_files().
// FILE.idx and FILE.mask beside a raw file are the ends of its documents and a byte for each of its
// tokens. A raw file that tells by its beginning, its .idx or its ids (id_check.h) that it is
// something else is a ConfigError that says how to convert it. An llm.c file is checked against its
// header (CorruptData). The two kinds of llm.c files are of two tokenizers, and together they are a
// ConfigError.
OpenedData open_data(const DataRequest& request);

}  // namespace terrace
