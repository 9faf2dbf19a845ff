#pragma once

#include <string>
#include <vector>

// Which files --data and --validation-data name.
namespace terrace {

// --data, --validation-data, and the paths of terrace tokenize.
enum class DataUse { kTraining, kValidation, kTokenize };

// Returns the regular files under `paths` in the order of the sequence: paths as given, a
// directory's files (recursively, hidden ones and run directories left out) in byte order of their
// paths. Links to files and to directories are followed. Throws ConfigError for a path that does
// not exist, for a directory with no files, for one that is itself a run directory, and for what a
// directory has besides files and directories: a link that leads nowhere or back to a directory it
// lies in, a pipe. The message names the flag.
std::vector<std::string> list_data_files(const std::vector<std::string>& paths,
                                         DataUse use = DataUse::kTraining);

// Files that hold tokens, by what they are for. Each list is in the order of the sequence.
struct TokenFileNames {
  std::vector<std::string> taken;       // files that were named, and those of directories
  std::vector<std::string> validation;  // of a directory of training data, by their names
  std::vector<std::string> left_out;    // of directories: test sets, and what is no token file
};

// As list_data_files(), and of a directory only files that are called as token files are: .bin,
// .u16, .u32 and the like. Those with val, valid, validation, dev or eval in their path below the
// directory are for validation, and those with test for neither. A directory of validation data
// that has files for validation is these alone. A file that is named itself is taken whatever it is
// called. Throws ConfigError where nothing is taken.
TokenFileNames list_token_files(const std::vector<std::string>& paths, DataUse use);

// Likewise of files of JSON lines, by the names that is_jsonl_name() knows.
TokenFileNames list_jsonl_files(const std::vector<std::string>& paths, DataUse use);
// Whether a file is called as files of JSON lines are: .jsonl, .jsonl.gz, .jsonl.zst.
bool is_jsonl_name(const std::string& path);

// Some file names for a message: "a, b, ... (12 files)".
std::string some_names(const std::vector<std::string>& files);

}  // namespace terrace
