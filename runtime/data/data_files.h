#pragma once

#include <string>
#include <vector>

// The files that --data and --validation-data name.
namespace terrace {

// --data, --validation-data, and the paths of terrace tokenize.
enum class DataUse { kTraining, kValidation, kTokenize };

// Returns the regular files under `paths` in the order of the sequence: paths as given, a
// directory's files (recursively, hidden ones and run directories left out) in byte order of their
// paths. Links to files and to directories are followed. Throws ConfigError for a path that does
// not exist, for a directory with no files, and for one that is itself a run directory. Also throws
// ConfigError for anything in a directory that is neither a file nor a directory: a link that leads
// nowhere or back to a directory it lies in, a pipe. The message names the flag.
std::vector<std::string> list_data_files(const std::vector<std::string>& paths,
                                         DataUse use = DataUse::kTraining);

// The files that hold tokens, by their use. Each list is in the order of the sequence.
struct TokenFileNames {
  std::vector<std::string> taken;       // files that were named, and files of directories
  std::vector<std::string> validation;  // in directories of training data, by their names
  std::vector<std::string> left_out;    // in directories: test sets, and other kinds of files
};

// Returns the files as list_data_files() does, but from a directory only those that are named like
// token files: .bin, .u16, .u32 and the like. Files with val, valid, validation, dev or eval in
// their path below the directory are for validation, and files with test are for neither. If a
// directory of validation data has files for validation, only these are taken. A file that is named
// itself is taken whatever it is called. Throws ConfigError where nothing is taken.
TokenFileNames list_token_files(const std::vector<std::string>& paths, DataUse use);

// Returns files of JSON lines in the same way, by the names that is_jsonl_name() knows.
TokenFileNames list_jsonl_files(const std::vector<std::string>& paths, DataUse use);
// Returns whether a file is named like files of JSON lines: .jsonl or .ndjson, and perhaps .gz or
// .zst behind it.
bool is_jsonl_name(const std::string& path);
// Returns whether a file has documents of JSON, lines or an array. A name as is_jsonl_name() knows
// it decides; else, if the name has .json, .jsonl or .ndjson in it ("train.json",
// "train.jsonl.txt"), the content does. Throws
// ConfigError for one object on several lines, which would be read as text by mistake; IoError.
bool holds_json_documents(const std::string& path);

// Returns some file names for a message: "a, b, ... (12 files)".
std::string some_names(const std::vector<std::string>& files);

}  // namespace terrace
